//! Calls while a thread ends, and a failure to make a pool.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use uzswap_c::{uzswap_error, uzswap_pool_free, uzswap_pool_load, uzswap_pool_new, uzswap_status};

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Uses a pool when its thread ends, as a destructor of C's would, which runs after all of Rust's.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        assert_eq!(missing(), uzswap_status::UZSWAP_MISSING);
        // SAFETY: never null, and terminated.
        let _ = unsafe { CStr::from_ptr(uzswap_error()) };
        IS_OVER.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    static LATE: Late = const { Late };
}

fn missing() -> uzswap_status {
    let (mut pool, mut page) = (null_mut(), [0; 4096]);
    // SAFETY: a terminated name, a place for the pool, and a page; the pool is ended once.
    unsafe {
        assert_eq!(uzswap_pool_new(c"lz4".as_ptr(), 0, &mut pool), uzswap_status::UZSWAP_OK);
        let status = uzswap_pool_load(pool, 0, 7, page.as_mut_ptr(), 1, false);
        uzswap_pool_free(pool);
        status
    }
}

#[test]
fn a_call_that_fails_while_its_thread_ends_only_fails() {
    let thread = std::thread::spawn(|| {
        // The last one made is dropped first.
        LATE.with(|_| ());
        assert_eq!(missing(), uzswap_status::UZSWAP_MISSING);
        // SAFETY: as above.
        let why = unsafe { CStr::from_ptr(uzswap_error()) };
        assert!(!why.is_empty());
    });
    thread.join().unwrap();
    assert!(IS_OVER.load(Ordering::Relaxed));
}

#[test]
fn a_device_that_does_no_work_makes_no_pool() {
    let mut pool = null_mut();
    // SAFETY: a terminated name, and a place for the pool; the message is terminated.
    let (status, why) = unsafe {
        let status = uzswap_pool_new(c"deflate-iaa:work=null".as_ptr(), 0, &mut pool);
        (status, CStr::from_ptr(uzswap_error()).to_string_lossy())
    };
    assert!(status == uzswap_status::UZSWAP_NO_COMPRESSOR && pool.is_null(), "{status:?}");
    assert!(why.contains("leave out work="), "{why}");
}
