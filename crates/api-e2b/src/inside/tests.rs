//! Files below a directory of the host, as if it was the root of a jail.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, XattrFlags};

use super::entry::Kind;
use super::*;

/// A root with `/home/user/own`, beside a file that no path may reach.
fn tree() -> (tempfile::TempDir, std::path::PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let root = top.path().join("root");
    std::fs::create_dir_all(root.join("home/user")).unwrap();
    std::fs::create_dir(root.join("etc")).unwrap();
    std::fs::write(root.join("home/user/own"), "own").unwrap();
    std::fs::write(top.path().join("secret"), "secret").unwrap();
    (top, root)
}

fn inside(root: &Path) -> Inside {
    of_test(root).enter().unwrap()
}

fn errno(error: FileError) -> Errno {
    match error {
        FileError::System { errno, .. } => errno,
        other => panic!("{other}"),
    }
}

#[test]
fn links_stay_in_the_root() {
    let (top, root) = tree();
    let home = root.join("home/user");
    symlink("/home/user/own", home.join("absolute")).unwrap();
    symlink("../../../../../../home/user/own", home.join("above")).unwrap();
    symlink("own", home.join("relative")).unwrap();
    symlink("relative", home.join("twice")).unwrap();
    symlink("/", home.join("top")).unwrap();
    symlink(top.path().join("secret"), home.join("outside")).unwrap();
    symlink("../../../secret", home.join("beside")).unwrap();
    symlink("/proc/self/root", home.join("magic")).unwrap();
    symlink("loop", home.join("loop")).unwrap();
    let inside = inside(&root);
    for name in ["absolute", "above", "relative", "twice", "top/home/user/own"] {
        let path = inside.path(name).unwrap();
        let info = inside.entry(&path).unwrap();
        assert_eq!(info.kind, Kind::File, "{name}");
        assert_eq!(inside.workspace.open_plain(&path).unwrap().1, 3, "{name}");
        let target = (name != "top/home/user/own").then(|| "/home/user/own".to_owned());
        assert_eq!(info.symlink_target, target, "{name}");
    }
    for name in ["outside", "beside", "magic/etc/passwd", "loop", "top/../../../secret"] {
        let path = inside.path(name).unwrap();
        assert!(inside.workspace.open_plain(&path).is_err(), "{name}");
    }
    for (name, target) in
        [("outside", top.path().join("secret").display().to_string()), ("beside", "/secret".to_owned())]
    {
        let info = inside.entry(&inside.path(name).unwrap()).unwrap();
        assert_eq!((info.kind, info.symlink_target), (Kind::Symlink, Some(target)), "{name}");
    }
    let looped = inside.workspace.open_plain("/home/user/loop").unwrap_err();
    assert_eq!(errno(looped), Errno::LOOP);
}

#[test]
fn magic_links_are_not_followed() {
    // The root is that of the host: its `/proc` has magic links.
    let inside = inside(Path::new("/"));
    let magic = inside.workspace.open_plain("/proc/self/exe").unwrap_err();
    assert_eq!(errno(magic), Errno::LOOP);
    let (file, size) = inside.workspace.open_plain("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(size, 0);
    assert_eq!(std::io::read_to_string(file).unwrap().trim().len(), 36);
}

#[test]
fn a_directory_that_is_swapped_for_a_link_leads_nowhere() {
    let (top, root) = tree();
    let outside = top.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("own"), "secret").unwrap();
    let (dir, link) = (root.join("home/user/dir"), root.join("home/user/link"));
    std::fs::create_dir(&dir).unwrap();
    symlink(&outside, &link).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::fs::renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE);
            }
        });
        let inside = inside(&root);
        for _ in 0..3000 {
            assert!(inside.workspace.open_plain("/home/user/dir/own").is_err());
            let _ = inside.remove("/home/user/dir/own");
            let _ = inside.make_directory("/home/user/dir/new");
        }
        done.store(true, Ordering::Relaxed);
    });
    let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["own"]);
}

#[test]
fn a_write_goes_where_a_link_leads() {
    let (_top, root) = tree();
    symlink("../new", root.join("home/user/link")).unwrap();
    symlink("/etc/config", root.join("home/new")).unwrap();
    let inside = inside(&root);
    let place = inside.workspace.place_behind_links("/home/user/link").unwrap();
    rustix::fs::symlinkat("x", place_dir(&inside, "/etc"), "config").unwrap();
    drop(place);
    let found = std::fs::read_link(root.join("etc/config")).unwrap();
    assert_eq!(found, Path::new("x"));
    symlink("circle", root.join("circle")).unwrap();
    assert_eq!(errno(inside.workspace.place_behind_links("/circle").unwrap_err()), Errno::LOOP);
}

fn place_dir(inside: &Inside, path: &str) -> std::os::fd::OwnedFd {
    inside.workspace.at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

#[test]
fn a_list_has_each_directory_before_its_entries() {
    let (_top, root) = tree();
    let home = root.join("home/user");
    for directory in ["b/inner/deep", "a"] {
        std::fs::create_dir_all(home.join(directory)).unwrap();
    }
    std::fs::write(home.join("b/file"), "").unwrap();
    symlink("b", home.join("to-b")).unwrap();
    let inside = inside(&root);
    let list = |path: &str, depth| {
        inside.list(path, depth).unwrap().into_iter().map(|info| info.path).collect::<Vec<_>>()
    };
    let named = |names: &[&str]| names.iter().map(|name| format!("/home/user/{name}")).collect::<Vec<_>>();
    assert_eq!(list("/home/user", 1), named(&["a", "b", "own", "to-b"]));
    assert_eq!(list("/home/user", 2), named(&["a", "b", "b/file", "b/inner", "own", "to-b"]));
    assert_eq!(list("/home/user", 9), named(&["a", "b", "b/file", "b/inner", "b/inner/deep", "own", "to-b"]));
    assert_eq!(list("/home/user/to-b", 1), named(&["to-b/file", "to-b/inner"]));
    assert_eq!(errno(inside.list("/home/user/own", 1).unwrap_err()), Errno::NOTDIR);
    assert_eq!(errno(inside.list("/home/user/none", 1).unwrap_err()), Errno::NOENT);
    assert_eq!(list("/", 1), ["/etc", "/home"]);
}

#[test]
fn directories_are_made_moved_and_removed() {
    let (_top, root) = tree();
    let inside = inside(&root);
    assert_eq!(inside.make_directory("/home/user/x/y").unwrap(), None);
    assert_eq!(inside.make_directory("/home/user/x/y").unwrap(), Some(Occupied::Directory));
    assert_eq!(inside.make_directory("/home/user/own").unwrap(), Some(Occupied::Other));
    assert_eq!(errno(inside.make_directory("/home/user/own/x").unwrap_err()), Errno::NOTDIR);
    inside.move_to("/home/user/own", "/home/user/new/deep/file").unwrap();
    assert_eq!(inside.entry("/home/user/new/deep/file").unwrap().size, "3");
    assert_eq!(errno(inside.move_to("/home/user/own", "/home/user/gone/file").unwrap_err()), Errno::NOENT);
    assert!(!root.join("home/user/gone").try_exists().unwrap());
    for path in ["/home/user/x", "/home/user/x", "/home/user/none/x"] {
        inside.remove(path).unwrap();
    }
    assert!(!root.join("home/user/x").try_exists().unwrap());
    assert!(inside.remove("/").is_err());
    assert_eq!(inside.entry("/").unwrap().kind, Kind::Directory);
}

#[test]
fn a_file_has_its_owner_permissions_and_metadata() {
    let (_top, root) = tree();
    let own = root.join("home/user/own");
    // Not every file system has attributes.
    let has_attributes = rustix::fs::setxattr(&own, "user.e2b.author", b"me", XattrFlags::empty()).is_ok();
    let _ = rustix::fs::setxattr(&own, "user.other", b"x", XattrFlags::empty());
    let info = inside(&root).entry("/home/user/own").unwrap();
    assert_eq!((info.owner.as_str(), info.group.as_str()), ("user", "user"));
    assert_eq!((info.name.as_str(), info.size.as_str(), info.mode), ("own", "3", 0o644));
    assert_eq!(info.permissions, "-rw-r--r--");
    assert!(
        info.modified_time.ends_with('Z') && info.modified_time.starts_with("20"),
        "{}",
        info.modified_time
    );
    if has_attributes {
        let metadata: Vec<_> = info.metadata.into_iter().collect();
        assert_eq!(metadata, [("author".to_owned(), "me".to_owned())]);
    }
}
