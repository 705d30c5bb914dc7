//! Kernel operations for single-threaded processes only: uzswap's threads are not in the way.

mod support;

use support::{command, has, managed, Ran};

/// Python reads 75 MiB repeatedly, under the command before it.
const JOB: &str =
    "a = bytearray(range(256)) * (300 << 10)\nprint(sum(a[i + 7] for i in range(0, len(a), 4096)))";

/// The job, and again until most of it is out, or the time is over: paging may begin late.
fn job_until_evicted(seconds: u32) -> String {
    format!(
        "import os, time\n{JOB}\nend = time.time() + {seconds}\n\
         resident = lambda: int(open('/proc/thread-self/statm').read().split()[1])\n\
         while resident() > 15000 and time.time() < end: sum(a[i + 7] for i in range(0, len(a), 4096))\n"
    )
}

fn is_refused_bare(words: &[&str]) -> bool {
    let bare = Ran::of(&mut command(words));
    if bare.status != Some(0) {
        testkit::skip!("kernel", "{bare}");
    }
    bare.status != Some(0)
}

/// Linux makes a user namespace for single-threaded processes only.
#[test]
fn a_user_namespace_of_its_own() {
    if !has("unshare") || !has("python3") || is_refused_bare(&["unshare", "-r", "true"]) {
        return;
    }
    let job = &job_until_evicted(60);
    for command in [
        &["unshare", "-r", "python3", "-c", job][..],
        &["unshare", "-r", "unshare", "-rm", "python3", "-c", job],
    ] {
        let Some(ran) = managed("40M", &["-q"], command) else { return };
        ran.assert_paged().assert_all_managed();
        assert_eq!(ran.printed, "134400\n", "{ran}");
    }
}

/// Regression: it was refused while pages were out.
#[test]
fn a_user_namespace_while_pages_are_out() {
    if !has("unshare") || !has("python3") || is_refused_bare(&["unshare", "-r", "true"]) {
        return;
    }
    let job = job_until_evicted(60)
        + "import ctypes\nprint(resident() <= 15000, ctypes.CDLL(None).unshare(0x10000000))\n\
           print(sum(a[i + 7] for i in range(0, len(a), 4096)))";
    let Some(ran) = managed("40M", &["-q"], &["python3", "-c", &job]) else { return };
    ran.assert_paged().assert_all_managed();
    assert_eq!(ran.printed, "134400\nTrue 0\n134400\n", "{ran}");
}

/// The supervisor's address exists in its own network namespace only: such programs were in no
/// book. Where the object cannot be loaded, the report says why they are not managed.
#[test]
fn a_network_namespace_of_its_own() {
    if !has("unshare") || !has("python3") || is_refused_bare(&["unshare", "-rn", "true"]) {
        return;
    }
    for (how, seconds) in [("-n", 60), ("-rn", 10), ("-rnpf", 10)] {
        if is_refused_bare(&["unshare", how, "true"]) {
            continue;
        }
        // The supervisor takes a while to find it.
        let job = job_until_evicted(seconds)
            + "if os.fork() == 0:\n  print(sum(a[i + 7] for i in range(0, len(a), 4096)), flush=True)\n  \
               os._exit(0)\nos.wait()";
        let Some(ran) = managed("40M", &["-q"], &["unshare", how, "python3", "-c", &job]) else { return };
        ran.assert_status(0);
        assert_eq!(ran.printed, "134400\n134400\n", "{ran}");
        let is_paged = ran.number("zswpout") > 1000;
        let is_named = ran.report["unmanaged"].as_array().is_some_and(|named| !named.is_empty());
        assert!(is_paged && !is_named || how != "-n" && is_named, "{ran}");
    }
}

/// Regression: the filter's trial was the namespace's first process, and no other could be made.
#[test]
fn a_filter_before_the_first_process_of_a_namespace() {
    if !has("unshare") || !has("python3") || is_refused_bare(&["unshare", "-pf", "true"]) {
        return;
    }
    // CLONE_NEWPID; PR_SET_NO_NEW_PRIVS; SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, and
    // the filter that allows every call.
    let number = libc::SYS_seccomp;
    let job = format!(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         print(libc.unshare(0x20000000), libc.prctl(38, 1, 0, 0, 0))\n\
         step = ctypes.create_string_buffer(b'\\x06\\0\\0\\0\\0\\0\\xff\\x7f', 8)\n\
         class Filter(ctypes.Structure):\n  \
           _fields_ = [('len', ctypes.c_ushort), ('steps', ctypes.c_void_p)]\n\
         filter = Filter(1, ctypes.addressof(step))\n\
         print(libc.syscall({number}, 1, 1, ctypes.byref(filter)), flush=True)\n\
         pid = os.fork()\nif pid == 0:\n  print('child', os.getpid(), flush=True)\n  os._exit(0)\n\
         print(os.waitpid(pid, 0)[1])"
    );
    let Some(ran) = managed("1G", &["-q"], &["python3", "-c", &job]) else { return };
    assert_eq!(ran.printed, "0 0\n0\nchild 1\n0\n", "{ran}");
}

/// Chromium's first process ends when it is not single-threaded.
#[test]
fn threads_that_a_program_counts_are_its_own() {
    let script = "import os, threading, time\n\
                  proc = os.open('/proc', os.O_RDONLY)\n\
                  links = lambda: os.stat('self/task/', dir_fd=proc).st_nlink\n\
                  print(links())\n\
                  threading.Thread(target=time.sleep, args=[1]).start()\n\
                  print(links())\n";
    let Some(ran) = managed("1G", &["-q"], &["python3", "-c", script]) else { return };
    assert_eq!(ran.printed, "3\n4\n", "{ran}");
}
