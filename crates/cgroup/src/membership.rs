//! `/proc/<pid>/cgroup`, cgroups(7).

/// The cgroups of a process in each hierarchy, as paths in the reader's cgroup namespace.
#[derive(Debug, Clone, Copy)]
pub struct Membership<'a> {
    text: &'a [u8],
}

/// The kernel's suffix for a removed cgroup whose only member left is a zombie.
const DELETED: &[u8] = b" (deleted)";

impl<'a> Membership<'a> {
    /// Takes the text of the file. Any text is accepted: lines that do not have the format of cgroups(7) are skipped.
    pub fn of(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// Returns the path in the cgroup2 hierarchy, without the kernel's ` (deleted)`; `None` without such a line.
    pub fn unified(self) -> Option<&'a [u8]> {
        self.lines()
            .find(|&(id, controllers, _)| id == b"0" && controllers.is_empty())
            .map(|(_, _, path)| path)
    }

    /// Returns the path in the v1 hierarchy that has `controller`; `None` without such a hierarchy.
    pub fn v1(self, controller: &[u8]) -> Option<&'a [u8]> {
        self.lines()
            .find(|(id, controllers, _)| {
                *id != b"0" && controllers.split(|&byte| byte == b',').any(|name| name == controller)
            })
            .map(|(_, _, path)| path)
    }

    /// Tells whether the path in the cgroup2 hierarchy is `cgroup` or below it.
    pub fn is_in(self, cgroup: &str) -> bool {
        let cgroup = cgroup.trim_end_matches('/').as_bytes();
        self.unified()
            .and_then(|path| path.strip_prefix(cgroup))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }

    /// Returns each line as hierarchy id, controllers and path; the path may hold `:`.
    fn lines(self) -> impl Iterator<Item = (&'a [u8], &'a [u8], &'a [u8])> {
        self.text.split(|&byte| byte == b'\n').filter_map(|line| {
            let mut fields = line.splitn(3, |&byte| byte == b':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            Some((id, controllers, path.strip_suffix(DELETED).unwrap_or(path)))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID: &[u8] =
        b"9:name=systemd:/\n8:cpu,cpuacct:/box\n6:freezer:/ice:1\n0::/penfold/a1 (deleted)\n";

    #[test]
    fn hierarchies_are_told_apart() {
        let membership = Membership::of(HYBRID);
        assert_eq!(membership.unified(), Some(&b"/penfold/a1"[..]));
        assert_eq!(membership.v1(b"freezer"), Some(&b"/ice:1"[..]));
        assert_eq!(membership.v1(b"cpuacct"), Some(&b"/box"[..]));
        assert_eq!(membership.v1(b"acct"), None);
        assert_eq!(Membership::of(b"6:freezer:/\n").unified(), None);
    }

    #[test]
    fn only_a_whole_name_counts_as_inside() {
        let inside =
            |path: &str, cgroup: &str| Membership::of(format!("0::{path}\n").as_bytes()).is_in(cgroup);
        assert!(inside("/a/b", "/a/b"));
        assert!(inside("/a/b/c", "/a/b"));
        assert!(inside("/a", "/"));
        assert!(inside("/", "/"));
        assert!(!inside("/a/bc", "/a/b"));
        assert!(!inside("/a", "/a/b"));
        assert!(!inside("/../a/b", "/a/b"));
        assert!(!Membership::of(b"").is_in("/"));
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in proptest::collection::vec(any::<u8>(), 0..256)) {
            let membership = Membership::of(&text);
            let _ = (membership.unified(), membership.v1(b"freezer"), membership.is_in("/a"));
        }

        #[test]
        fn any_name_round_trips(path in "(/[ -~]{1,8}){1,4}", below in "[ -~]{1,8}") {
            prop_assume!(!path.ends_with(" (deleted)") && !path.ends_with('/') && !path.contains("//"));
            let text = format!("1:name=systemd:/x\n0::{path}\n");
            prop_assert_eq!(Membership::of(text.as_bytes()).unified(), Some(path.as_bytes()));
            prop_assert!(Membership::of(text.as_bytes()).is_in(&path));
            let text = format!("0::{path}/{below}\n");
            prop_assert!(Membership::of(text.as_bytes()).is_in(&path));
        }
    }
}
