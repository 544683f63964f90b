//! Places for leaves, on recorded hosts.

use std::path::Path;

use penfold_cgroup::{LeafPlace, Membership, NoPlace, mountinfo};

macro_rules! host {
    ($name:literal) => {
        (
            &include_bytes!(concat!("recorded/", $name, ".mountinfo"))[..],
            &include_bytes!(concat!("recorded/", $name, ".cgroup"))[..],
        )
    };
}

fn located((mounts, cgroup): (&[u8], &[u8])) -> Result<(String, String), NoPlace> {
    let located = LeafPlace::locate(mounts, cgroup)?;
    Ok((located.path.to_string_lossy().into_owned(), located.cgroup))
}

fn is_at(host: (&[u8], &[u8]), path: &str, cgroup: &str) {
    let expected = (path.to_owned(), cgroup.to_owned());
    assert_eq!(located(host).expect("a place"), expected);
    mountinfo::parse_mountinfo(host.0).expect("every recorded line has the documented shape");
}

#[test]
fn pure_v2_uses_the_own_cgroup() {
    let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/app-shell.scope";
    is_at(host!("pure"), &format!("/sys/fs/cgroup{own}"), own);
}

#[test]
fn hybrid_uses_the_unified_mount() {
    is_at(host!("hybrid"), "/sys/fs/cgroup/unified", "/");
}

#[test]
fn systemd_hybrid_ignores_the_named_hierarchy() {
    let own = "/user.slice/user-0.slice/session-3.scope";
    is_at(host!("hybrid-systemd"), &format!("/sys/fs/cgroup/unified{own}"), own);
}

#[test]
fn v1_only_has_no_place() {
    assert!(matches!(located(host!("v1")), Err(NoPlace::NotMounted)));
}

#[test]
fn container_with_own_namespace_uses_the_mount_itself() {
    is_at(host!("container"), "/sys/fs/cgroup", "/");
}

#[test]
fn unprivileged_container_is_read_only() {
    let error = located(host!("container-ro")).expect_err("read-only");
    assert!(
        matches!(&error, NoPlace::ReadOnly { mount_point } if mount_point == Path::new("/sys/fs/cgroup"))
    );
    assert_eq!(error.to_string(), "the cgroup2 file system on `/sys/fs/cgroup` is mounted read-only");
}

#[test]
fn bind_mounted_subtree_drops_its_root() {
    is_at(host!("container-host-ns"), "/sys/fs/cgroup/inner", "/docker/3f9a1c2b7d04/inner");
}

#[test]
fn nested_path_and_escapes_are_followed() {
    is_at(host!("nested"), "/srv/odd name/cg2/penfold/a1/b2:c", "/penfold/a1/b2:c");
}

#[test]
fn a_cgroup_outside_of_the_mount_is_named() {
    let (mounts, _) = host!("container");
    for own in ["0::/../..\n", "0::/../sibling\n"] {
        let error = located((mounts, own.as_bytes())).expect_err("outside");
        assert!(matches!(error, NoPlace::Outside { .. }), "{error:?}");
    }
    let (mounts, _) = host!("container-host-ns");
    assert!(matches!(located((mounts, b"0::/docker/other\n")), Err(NoPlace::Outside { .. })));
    // A prefix must end at a whole name.
    assert!(matches!(located((mounts, b"0::/docker/3f9a1c2b7d045\n")), Err(NoPlace::Outside { .. })));
}

#[test]
fn no_membership_is_said() {
    let (mounts, _) = host!("pure");
    assert!(matches!(located((mounts, b"")), Err(NoPlace::NotMember)));
}

#[test]
fn v1_controllers_are_found_by_name() {
    let (_, cgroup) = host!("hybrid-systemd");
    let membership = Membership::of(cgroup);
    assert_eq!(membership.v1(b"freezer"), Some(&b"/"[..]));
    assert_eq!(membership.v1(b"cpuacct"), Some(&b"/user.slice"[..]));
}

#[test]
fn the_short_way_leads_where_the_list_of_mounts_does() {
    let read = |path: &str| std::fs::read(path).expect("every Linux has it");
    let listed = LeafPlace::find(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    match (LeafPlace::find_here(), listed) {
        (Ok(here), Ok(listed)) => {
            let inode = |place: &LeafPlace| rustix::fs::fstat(place.dir()).expect("open").st_ino;
            assert_eq!(inode(&here), inode(&listed));
            assert_eq!(here.cgroup(), listed.cgroup());
        }
        (Err(here), Err(listed)) => assert_eq!(here.to_string(), listed.to_string()),
        (here, listed) => panic!("{here:?} but {listed:?}"),
    }
}
