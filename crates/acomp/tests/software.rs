//! The loop that software codecs share, and the registry.

use std::sync::Arc;

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Page, Registry, Software,
    UnitCodec, UnitError, UnitResult, PAGE_SIZE,
};

/// Stores a unit's length and first byte; refuses units that start with 0, fails on those with 1.
struct Toy;

impl UnitCodec for Toy {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        match unit[0] {
            0 => Err(UnitError::NoSpace),
            1 => Err(UnitError::Failed),
            first => {
                output[..3].copy_from_slice(&[first, (unit.len() / PAGE_SIZE) as u8, unit[unit.len() - 1]]);
                Ok(3)
            }
        }
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        match object {
            [first, pages, last] if *pages as usize * PAGE_SIZE == output.len() => {
                output.fill(*first);
                output[output.len() - 1] = *last;
                Ok(())
            }
            _ => Err(UnitError::Failed),
        }
    }
}

fn pages(firsts: &[u8]) -> Vec<Page> {
    firsts.iter().map(|&first| [first; PAGE_SIZE]).collect()
}

fn compress(firsts: &[u8], unit_pages: usize) -> (Vec<UnitResult>, Vec<Vec<u8>>) {
    let pages = pages(firsts);
    let refs: Vec<&Page> = pages.iter().collect();
    let units = firsts.len().div_ceil(unit_pages);
    let mut buffers = vec![vec![0; PAGE_SIZE]; units];
    let mut results = vec![Ok(99); units];
    Software::for_units(Toy, unit_pages * PAGE_SIZE).compress(&mut CompressRequest {
        pages: &refs,
        unit_size: unit_pages * PAGE_SIZE,
        outputs: &mut buffers.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        results: &mut results,
    });
    (results, buffers)
}

#[test]
fn a_bad_unit_costs_only_itself() {
    let (results, buffers) = compress(&[9, 0, 8, 1, 7, 6, 5, 4], 1);
    let expected: Vec<UnitResult> = [9, 0, 8, 1, 7, 6, 5, 4]
        .map(|first| match first {
            0 => Err(UnitError::NoSpace),
            1 => Err(UnitError::Failed),
            _ => Ok(3),
        })
        .to_vec();
    assert_eq!(results, expected);
    assert_eq!(buffers[7][..3], [4, 1, 4]);
}

#[test]
fn pages_of_a_unit_are_gathered_and_the_last_unit_may_be_short() {
    let (results, buffers) = compress(&[2, 3, 4, 5, 6, 7, 8, 9, 10], 4);
    assert_eq!(results, [Ok(3), Ok(3), Ok(3)]);
    assert_eq!([&buffers[0][..3], &buffers[1][..3], &buffers[2][..3]], [[2, 4, 5], [6, 4, 9], [10, 1, 10]]);
}

#[test]
fn objects_in_two_pieces_are_joined_and_damaged_ones_fail_alone() {
    let mut context = Software::new(Toy);
    let mut outputs = [vec![0; PAGE_SIZE], vec![0; 2 * PAGE_SIZE], vec![0; PAGE_SIZE], vec![0; PAGE_SIZE]];
    let long = vec![0; acomp::UNIT_SIZE_MAX + 1];
    let mut results = [Ok(0); 4];
    context.decompress(&mut DecompressRequest {
        objects: &[
            Object { head: &[5], tail: &[1, 6] },
            Object { head: &[7, 2], tail: &[8] },
            Object::whole(&[7, 2, 8]),
            Object::whole(&long),
        ],
        outputs: &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        results: &mut results,
    });
    assert_eq!(results, [Ok(PAGE_SIZE), Ok(2 * PAGE_SIZE), Err(UnitError::Failed), Err(UnitError::Failed)]);
    assert_eq!((outputs[0][0], outputs[0][PAGE_SIZE - 1]), (5, 6));
    assert_eq!((outputs[1][0], outputs[1][2 * PAGE_SIZE - 1]), (7, 8));
}

#[test]
#[should_panic(expected = "a context for smaller units")]
fn a_context_for_pages_takes_no_larger_units() {
    let pages = pages(&[2, 2]);
    let mut buffer = vec![0; PAGE_SIZE];
    Software::for_units(Toy, PAGE_SIZE).compress(&mut CompressRequest {
        pages: &pages.iter().collect::<Vec<_>>(),
        unit_size: 2 * PAGE_SIZE,
        outputs: &mut [&mut buffer],
        results: &mut [Ok(0)],
    });
}

struct Named(String);

impl Algorithm for Named {
    fn name(&self) -> &str {
        &self.0
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(Software::new(Toy)))
    }
}

#[test]
fn names_are_found_with_their_parameters_and_errors_list_known_names() {
    let mut registry = Registry::new();
    registry.register("toy", "toy[:N]", |parameter| match parameter {
        Some("x") => Err("N is a number".to_owned()),
        parameter => Ok(Arc::new(Named(format!("toy/{}", parameter.unwrap_or("-"))))),
    });
    registry.register("other", "other", |_| Ok(Arc::new(Named("other".to_owned()))));
    assert_eq!(registry.find("toy").unwrap().name(), "toy/-");
    assert_eq!(registry.find("toy:3:4").unwrap().name(), "toy/3:4");
    assert_eq!(registry.usages().collect::<Vec<_>>(), ["toy[:N]", "other"]);
    let unknown = registry.find("tox").err().unwrap().to_string();
    assert_eq!(unknown, "unknown compressor \"tox\"; known: toy[:N], other");
    registry.leave_out("heavy", "bulk");
    let left_out = registry.find("heavy:3").err().unwrap().to_string();
    assert!(
        left_out.contains("the Debian package has it, or build uzswap with `--features bulk`"),
        "{left_out}"
    );
    let refused = registry.find("toy:x").err().unwrap().to_string();
    assert_eq!(refused, "compressor \"toy:x\": N is a number; write toy[:N]");
}
