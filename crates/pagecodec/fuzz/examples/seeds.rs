//! Writes each target's initial corpus into `corpus/`: objects of generated pages.

use std::path::Path;
use std::{fs, io};

use acomp::{CompressRequest, Registry, UnitError, PAGE_SIZE};
use pagecodec::numeric::{self, Shape};
use pagecodec::Isa;
use pagecodec_fuzz::{encode, units, Page};

#[path = "../../tests/support/mod.rs"]
mod support;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut count = 0;
    let mut put = |target: &str, name: &str, parts: &[&[u8]]| {
        count += 1;
        fs::create_dir_all(corpus.join(target))?;
        fs::write(corpus.join(target).join(name), parts.concat())
    };
    let mut pages: Vec<Page> = Vec::new();
    for (class, make) in support::CLASSES {
        let name = class.replace(' ', "-");
        let page = make(&mut support::Random(1));
        pages.push(page);
        let plain = encode::t16(&page);
        put("t16_decode", &name, &[&plain])?;
        put("t16h_decode", &name, &[&encode::t16h(&plain).expect("an object of the encoder")])?;
        put("t16h_decode", &format!("{name}-page"), &[&encode::t16h_page(&page)])?;
        put("lz_decode", &name, &[&[0, 0], &encode::lz(&page)])?;
        let less = 4096 - 700u16;
        put("lz_decode", &format!("{name}-short"), &[&less.to_le_bytes(), &encode::lz(&page[..700])])?;
        let (shape, _) = numeric::estimate(Isa::Portable, &page);
        put("number_decode", &name, &[&encode::numeric(&page, shape)])?;
        if let Some(object) = encode::sparse(&page) {
            put("number_decode", &format!("{name}-sparse"), &[&object])?;
        }
        for period in [64, 512, 4096] {
            put("round_trip", &format!("{name}-{period}"), &[&page[..period]])?;
            // Two changes in the header.
            put("damage", &format!("{name}-{period}"), &[&[1, 4, 0, 1, 20, 0, 128], &page[..period]])?;
        }
    }
    for shape in Shape::ALL {
        let name = format!("{}-{}", 8 << shape.log2_size, shape.differences);
        put("number_decode", &name, &[&encode::numeric(&pages[pages.len() / 2], shape)])?;
    }
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    for kind in 0..units::KINDS {
        let algorithm = registry.find(units::name(kind)).expect("registered");
        for log2_pages in [0, 2] {
            let mut context = algorithm.context_for(PAGE_SIZE << log2_pages).expect("memory");
            for (number, unit) in pages.chunks_exact(1 << log2_pages).enumerate() {
                let mut output = vec![0; unit.len() * PAGE_SIZE];
                let mut results = [Err(UnitError::Failed)];
                context.compress(&mut CompressRequest {
                    pages: &unit.iter().collect::<Vec<_>>(),
                    unit_size: output.len(),
                    outputs: &mut [&mut output],
                    results: &mut results,
                });
                let Ok(len) = results[0] else { continue };
                let front = [kind as u8, log2_pages, (len / 2) as u8, (len >> 9) as u8];
                put("units", &format!("{kind}-{log2_pages}-{number}"), &[&front, &output[..len]])?;
            }
        }
    }
    println!("{count} inputs in {}", corpus.display());
    Ok(())
}
