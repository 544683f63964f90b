//! What the command makes itself.

use std::time::Duration;

use penfold_resource::{ResourceError, ResourcePresence};

use crate::support::{Holder, Sandbox, as_root, attempt, has, has_mount, holders, run};

#[test]
fn a_path_goes_and_must_be_free_before() {
    for make in [
        |path: &std::path::Path| std::fs::write(path, "x").unwrap(),
        |path: &std::path::Path| std::fs::create_dir_all(path.join("a/b")).unwrap(),
        |path: &std::path::Path| std::os::unix::fs::symlink("/", path).unwrap(),
    ] {
        let sandbox = Sandbox::plan(r#"{"own":["path=DIR/x"]}"#);
        sandbox.create();
        make(&sandbox.path("x"));
        assert!(matches!(sandbox.planned[0].check(), Err(ResourceError::Taken { .. })));
        assert!(matches!(sandbox.planned[0].probe(&sandbox.owner), Ok(ResourcePresence::Ours { .. })));
        sandbox.release_all();
        assert_eq!(std::fs::read_dir(sandbox.dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_netns_goes_and_is_not_gone_while_it_is_held() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let mut sandbox = Sandbox::new();
        let name = format!("own-{}", sandbox.owner.id);
        sandbox.planned = sandbox.try_plan(&format!(r#"{{"own":["netns={name}"]}}"#)).unwrap();
        sandbox.create();
        run(&["ip", "netns", "add", &name]);
        let holder = Holder::shell(&format!("exec 7</run/netns/{name}"));
        for _ in 0..2 {
            let error = sandbox.release_one(0, Duration::from_millis(100)).unwrap_err();
            holder.is_named_in(holders(&error));
        }
        drop(holder);
        sandbox.release_all();
    });
}

#[test]
fn a_link_and_a_mount_go() {
    as_root(|| {
        if !has("ip") || !has("mount") {
            return;
        }
        let mut sandbox = Sandbox::new();
        let link = format!("po{}", sandbox.owner.id);
        let request = format!(r#"{{"own":["link={link}","mount=DIR/m"]}}"#);
        sandbox.planned = sandbox.try_plan(&request).unwrap();
        sandbox.create();
        let point = sandbox.path("m");
        std::fs::create_dir(&point).unwrap();
        run(&["ip", "link", "add", &link, "type", "veth"]);
        run(&["mount", "-t", "tmpfs", "x", point.to_str().unwrap()]);
        std::fs::create_dir(point.join("n")).unwrap();
        run(&["mount", "-t", "tmpfs", "y", point.join("n").to_str().unwrap()]);
        sandbox.release_all();
        assert!(!attempt(&["ip", "link", "show", &link]).1);
        assert!(!has_mount(&point));
    });
}

#[test]
fn a_loop_device_goes_also_after_its_file() {
    as_root(|| {
        if !has("losetup") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"own":["loop=DIR/image"]}"#);
        sandbox.create();
        let image = sandbox.path("image");
        std::fs::write(&image, vec![0; 1 << 16]).unwrap();
        run(&["losetup", "--find", image.to_str().unwrap()]);
        std::fs::remove_file(&image).unwrap();
        assert!(run(&["losetup", "--list"]).contains(image.to_str().unwrap()));
        sandbox.release_all();
        assert!(!run(&["losetup", "--list"]).contains(image.to_str().unwrap()));
    });
}

#[test]
fn a_loop_device_that_is_mounted_names_the_mount() {
    as_root(|| {
        if !has("losetup") || !has("mkfs.ext4") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"own":["loop=DIR/image"]}"#);
        sandbox.create();
        let (image, point) = (sandbox.path("image"), sandbox.path("m"));
        std::fs::create_dir(&point).unwrap();
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        run(&["mkfs.ext4", "-q", image.to_str().unwrap()]);
        run(&["mount", "-o", "loop", image.to_str().unwrap(), point.to_str().unwrap()]);
        let error = sandbox.release_one(0, Duration::from_millis(100)).unwrap_err();
        assert!(holders(&error)[0].contains(point.to_str().unwrap()), "{error:?}");
        run(&["umount", point.to_str().unwrap()]);
        sandbox.release_all();
    });
}

#[test]
fn an_nft_table_goes() {
    as_root(|| {
        let mut sandbox = Sandbox::new();
        let table = format!("pf{}", sandbox.owner.id);
        sandbox.planned = sandbox.try_plan(&format!(r#"{{"own":["nft=inet:{table}"]}}"#)).unwrap();
        if !has("nft") {
            let error = sandbox.planned[0].check().unwrap_err();
            assert!(matches!(error, ResourceError::NoProgram { program: "nft" }), "{error:?}");
            return;
        }
        sandbox.create();
        run(&["nft", "add", "table", "inet", &table]);
        assert!(matches!(sandbox.planned[0].check(), Err(ResourceError::Taken { .. })));
        sandbox.release_all();
        assert!(!run(&["nft", "list", "tables"]).contains(&table));
    });
}
