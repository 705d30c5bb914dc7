//! The environment of this program, as far as it affects the right to page.

use std::fs;
use std::path::Path;

/// The environment. If several apply, the innermost that can be detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environment {
    /// gVisor: a user-space kernel without userfaultfd.
    Gvisor,
    Kubernetes,
    Docker,
    Podman,
    /// A rootless container in a user namespace.
    Rootless,
    Wsl,
    /// Another user namespace.
    UserNamespace,
    /// A seccomp filter refuses userfaultfd(2), as firejail's and systemd's do.
    Filter,
    User,
    /// An ordinary user, where the Debian package has created its group.
    UserBesideGroup,
    Root,
}

#[derive(Debug, Default)]
struct Signs {
    version: String,
    has_kubernetes: bool,
    /// Docker's file in the root directory.
    has_dockerenv: bool,
    has_containerenv: bool,
    uid_map: String,
    is_root: bool,
    has_group: bool,
    is_filtered: bool,
}

impl Signs {
    fn here() -> Self {
        let exists = |path: &str| Path::new(path).exists();
        Signs {
            version: fs::read_to_string("/proc/version").unwrap_or_default(),
            has_kubernetes: exists("/var/run/secrets/kubernetes.io")
                || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            has_dockerenv: exists("/.dockerenv")
                && has_name_of_its_own(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()),
            has_containerenv: exists("/run/.containerenv"),
            uid_map: fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
            // SAFETY: takes nothing.
            is_root: unsafe { libc::geteuid() } == 0,
            has_group: fs::read_to_string("/etc/group")
                .is_ok_and(|groups| groups.lines().any(|line| line.starts_with("uzswap:"))),
            is_filtered: is_filtered(),
        }
    }

    fn place(&self) -> Environment {
        // gVisor always reports this kernel version and build date.
        let is_gvisor = self.version.contains("4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016");
        let map: Vec<&str> = self.uid_map.split_ascii_whitespace().collect();
        let is_mapped = !map.is_empty() && map != ["0", "0", "4294967295"];
        match self {
            _ if is_gvisor || self.version.contains("gVisor") => Environment::Gvisor,
            Signs { has_kubernetes: true, .. } => Environment::Kubernetes,
            Signs { has_containerenv: true, .. } | Signs { has_dockerenv: true, .. } if is_mapped => {
                Environment::Rootless
            }
            Signs { has_containerenv: true, .. } => Environment::Podman,
            Signs { has_dockerenv: true, .. } => Environment::Docker,
            _ if self.version.to_ascii_lowercase().contains("microsoft") => Environment::Wsl,
            Signs { is_filtered: true, .. } => Environment::Filter,
            _ if is_mapped => Environment::UserNamespace,
            Signs { is_root: true, .. } => Environment::Root,
            Signs { has_group: true, .. } => Environment::UserBesideGroup,
            _ => Environment::User,
        }
    }
}

/// Returns whether a seccomp filter refuses userfaultfd(2): since Linux 5.11 the kernel lets every
/// user open one that reports no accesses by the kernel.
fn is_filtered() -> bool {
    const UFFD_USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: the call takes no pointers.
    let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) };
    let refusal = std::io::Error::last_os_error().raw_os_error();
    if opened >= 0 {
        // SAFETY: opened just now.
        unsafe { libc::close(opened as libc::c_int) };
        return false;
    }
    matches!(refusal, Some(libc::EPERM | libc::EACCES))
}

/// Returns whether /etc/hostname is a mount, as in Docker's containers. An unpacked or booted image
/// has Docker's file but not this mount.
fn has_name_of_its_own(mounts: &str) -> bool {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.into_iter().any(|point| point == "/etc/hostname")
}

impl Environment {
    pub fn here() -> Self {
        Signs::here().place()
    }

    pub fn name(self) -> &'static str {
        match self {
            Environment::Gvisor => "gVisor",
            Environment::Kubernetes => "a container of Kubernetes",
            Environment::Docker => "a container of Docker",
            Environment::Podman => "a container of Podman",
            Environment::Rootless => "a rootless container",
            Environment::Wsl => "Windows Subsystem for Linux",
            Environment::UserNamespace => "a user namespace",
            Environment::Filter => "a seccomp filter that refuses userfaultfd(2)",
            Environment::User | Environment::UserBesideGroup => "an ordinary user of this machine",
            Environment::Root => "root of this machine",
        }
    }

    /// Returns the advice that gives the right to page here.
    pub fn fix(self) -> &'static str {
        match self {
            Environment::Gvisor => {
                "none: gVisor has no userfaultfd; run the container with another runtime (Docker: --runtime runc)"
            }
            Environment::Kubernetes => {
                "give the pod the device: a device plugin that offers /dev/userfaultfd (generic-device-plugin: \
                 --device '{\"name\": \"userfaultfd\", \"groups\": [{\"paths\": [{\"path\": \"/dev/userfaultfd\"}]}]}'), and \
                 `resources: {limits: {squat.ai/userfaultfd: 1}}` in the container; the node is root's: `runAsUser: 0`, or a \
                 udev rule on the machine"
            }
            Environment::Docker => {
                "docker run --device /dev/userfaultfd ...; as another user than root also, on the machine, \
                 `sudo chmod 0666 /dev/userfaultfd`"
            }
            Environment::Podman => {
                "podman run --device /dev/userfaultfd ...; as another user than root also, on the machine, \
                 `sudo chmod 0666 /dev/userfaultfd`"
            }
            Environment::Rootless => {
                "on the machine `sudo setfacl -m u:$USER:rw /dev/userfaultfd`, and podman run --device /dev/userfaultfd ..., as \
                 root of the container"
            }
            Environment::Wsl => "sudo sysctl vm.unprivileged_userfaultfd=1; if there is no such setting: wsl --update",
            Environment::UserNamespace => {
                "outside of the namespace: sudo setfacl -m u:$USER:rw /dev/userfaultfd, and bind that node into it; or there \
                 `sudo sysctl vm.unprivileged_userfaultfd=1`"
            }
            Environment::Filter => {
                "let the filter pass it: firejail --seccomp=!userfaultfd, systemd SystemCallFilter=userfaultfd; or give access \
                 to /dev/userfaultfd, which needs no such call"
            }
            Environment::User => {
                "sudo setfacl -m u:$USER:rw /dev/userfaultfd (until the next start); for good and for a group: `echo \
                 'KERNEL==\"userfaultfd\", GROUP=\"users\", MODE=\"0660\"' | sudo tee /etc/udev/rules.d/60-userfaultfd.rules`; \
                 or `sudo sysctl vm.unprivileged_userfaultfd=1`"
            }
            Environment::UserBesideGroup => "sudo usermod --append --groups uzswap $USER, and log in again",
            Environment::Root => "root without CAP_SYS_PTRACE: start it with that capability",
        }
    }

    /// Returns the advice for fork reports and for programs that change user: CAP_SYS_PTRACE.
    pub fn forks_fix(self) -> &'static str {
        match self {
            Environment::Gvisor => self.fix(),
            Environment::Kubernetes => {
                "`securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE]}}` in the container"
            }
            Environment::Docker => "docker run --cap-add SYS_PTRACE ..., as root of the container",
            Environment::Podman => "podman run --cap-add SYS_PTRACE ..., as root of the container",
            Environment::Rootless | Environment::UserNamespace => "none: a user namespace cannot give CAP_SYS_PTRACE",
            Environment::Wsl | Environment::User | Environment::UserBesideGroup | Environment::Filter => {
                "run as root, or `sudo setcap cap_sys_ptrace+ep` the uzswap program, which keeps it for this alone"
            }
            Environment::Root => "root without CAP_SYS_PTRACE: start it with that capability",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "         0          0 4294967295\n";

    #[test]
    fn places_are_known_by_their_signs() {
        let is = |version: &str, uid_map: &str| {
            let (version, uid_map) = (format!("Linux version {version}"), uid_map.to_owned());
            Signs { version, uid_map, ..Signs::default() }
        };
        let machine = || is("6.8.0", WHOLE);
        let rootless = is("6.8.0", "0 1000 1\n1 100000 65536\n");
        let cases = [
            (machine(), Environment::User),
            (Signs { has_group: true, ..machine() }, Environment::UserBesideGroup),
            (Signs { is_root: true, has_group: true, ..machine() }, Environment::Root),
            (Signs { has_dockerenv: true, is_root: true, ..machine() }, Environment::Docker),
            (Signs { has_containerenv: true, ..machine() }, Environment::Podman),
            (Signs { has_containerenv: true, ..rootless }, Environment::Rootless),
            (Signs { has_kubernetes: true, has_dockerenv: true, ..machine() }, Environment::Kubernetes),
            (Signs { is_root: true, ..is("6.8.0", "0 1000 1\n") }, Environment::UserNamespace),
            (Signs { is_filtered: true, is_root: true, ..machine() }, Environment::Filter),
            (Signs { is_filtered: true, has_dockerenv: true, ..machine() }, Environment::Docker),
            (is("5.15.90.1-microsoft-standard-WSL2", WHOLE), Environment::Wsl),
            (is("4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", WHOLE), Environment::Gvisor),
        ];
        for (signs, place) in cases {
            assert_eq!(signs.place(), place, "{signs:?}");
        }
    }

    #[test]
    fn a_file_of_dockers_alone_makes_no_container() {
        let root = "25 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n";
        assert!(!has_name_of_its_own(root));
        let container =
            "99 98 8:1 /var/lib/docker/containers/4f/hostname /etc/hostname rw - ext4 /dev/sda1 rw\n";
        assert!(has_name_of_its_own(&format!("{root}{container}")));
        assert!(!has_name_of_its_own(""));
    }

    #[test]
    fn every_place_has_a_line_that_can_be_used() {
        for (place, word) in [
            (Environment::Docker, "docker run --device /dev/userfaultfd"),
            (Environment::Podman, "podman run --device /dev/userfaultfd"),
            (Environment::Rootless, "setfacl"),
            (Environment::Kubernetes, "resources:"),
            (Environment::User, "setfacl"),
            (Environment::Gvisor, "none"),
        ] {
            assert!(place.fix().contains(word) && !place.fix().contains("  "), "{}", place.fix());
        }
    }
}
