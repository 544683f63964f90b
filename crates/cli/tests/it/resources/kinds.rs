//! Each kind of resource, as its command sees it.

use std::fs;

use super::{CleanUp, assert_all_there, assert_none_there, can_make, flags, has_link, traces};
use crate::support::{
    Running, Sandbox, TestEnv, Who, has_program, is_root, penfold, remove_dir, skip, wait_until,
};

/// spec: 18.1, 18.2
#[test]
fn everything_is_there_for_the_command_and_gone_after_it() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "{ echo $PENFOLD_SANDBOX; pwd; readlink /proc/self/ns/net; echo $PENFOLD_NETNS $PENFOLD_TAP; ls /sys/class/net
            [ -d $PENFOLD_SOCKETS ] && stat -c %a $PENFOLD_SOCKETS; ls ../bound ../layers; touch ../layers/new ../files/new junk; } > \"$OUT\"
            cat /proc/net/dev > \"$OUT.net\"; echo up >> \"$UP\"; setsid sleep 1000 & read -r _ < \"$GO\"; exit 3";
        let mut words = vec!["--contain".to_owned(), level.word().to_owned()];
        words.extend(flags(&env));
        words.extend(["--", "sh", "-c", script].map(str::to_owned));
        let (out, go) = (env.path("out"), env.path("go"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        let mut command = env.run_command(&words);
        let running = Running::start(command.env("OUT", &out).env("GO", &go));
        env.await_up(&["up"]);
        let said = fs::read_to_string(&out).unwrap();
        let mut lines = said.lines();
        let id = lines.next().unwrap().to_owned();
        assert_all_there(&env, &id);
        assert_eq!(lines.next().unwrap(), env.path("work/space").to_str().unwrap());
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(lines.next().unwrap(), own.to_str().unwrap(), "{level:?}");
        assert_eq!(lines.next().unwrap(), format!("penfold-{id} tap0"));
        assert!(said.contains("700\n") && said.contains("below"), "{said}");
        let devices = fs::read_to_string(format!("{}.net", out.display())).unwrap();
        for link in ["lo:", "eth0:", "tap0:"] {
            assert!(devices.contains(link), "{devices}");
        }
        fs::write(&go, "\n").unwrap();
        running.finish().with_code(3);
        assert_none_there(&env, &id);
        assert_eq!(crate::support::entries(&env.path("work/lower")).len(), 1);
        env.assert_nothing_left();
        for file in [&out, &go, &env.path("work/up")] {
            fs::remove_file(file).unwrap();
        }
    }
}

/// spec: 18.2
#[test]
fn an_exec_enters_the_network_of_its_sandbox() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["--netns", "--", "sleep", "1000"]);
    let leader = sandbox.leader().unwrap();
    let namespace = fs::read_link(format!("/proc/{}/ns/net", leader.pid())).unwrap();
    assert_ne!(namespace, fs::read_link("/proc/self/ns/net").unwrap());
    let seen = sandbox.call(&env, &["exec", "ID", "readlink", "/proc/self/ns/net"]).with_code(0).out();
    assert_eq!(seen.trim_end(), namespace.to_str().unwrap());
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    assert_none_there(&env, &sandbox.id);
    env.assert_nothing_left();
}

/// spec: 18.4
#[test]
fn what_the_command_makes_itself_is_released_too() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let name = format!("pf-test-{}", std::process::id());
    let (path, point) = (env.path("work/mine"), env.path("work/point"));
    fs::create_dir(&point).unwrap();
    let own = [
        format!("--own=path={}", path.display()),
        format!("--own=netns={name}"),
        format!("--own=link={}", &name[3..]),
        format!("--own=mount={}", point.display()),
    ];
    let _clean_up =
        CleanUp(format!("umount {}; ip netns del {name}; ip link del {}", point.display(), &name[3..]));
    let script = format!(
        "mkdir -p {0}/a/b; touch {0}/a/b/c; ip netns add {name}; ip link add {1} type veth peer name {1}p; mount -t tmpfs none {2}; echo up >> \"$UP\"; \
         exec sleep 1000",
        path.display(),
        &name[3..],
        point.display()
    );
    let words = own.iter().map(String::as_str).chain(["--", "sh", "-c", &script]);
    let sandbox = env.detach(words);
    env.await_up(&["up"]);
    let there = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        [
            path.try_exists().unwrap(),
            std::path::Path::new("/run/netns").join(&name).try_exists().unwrap(),
            has_link(&name[3..]),
            mounts.contains(point.to_str().unwrap()),
        ]
    };
    assert_eq!(there(), [true; 4]);
    // Another sandbox must not have what is there.
    for own in &own {
        env.run([own.as_str(), "touch", "ran"]).refused(125, "belongs to sandbox");
    }
    // What was there before is nobody's to give away.
    let before = format!("--own=path={}", point.display());
    env.run([before.as_str(), "touch", "ran"]).refused(125, "exists");
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    assert_eq!(there(), [false; 4]);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 18.3
#[test]
fn what_is_taken_or_wrong_is_refused_before_anything_is_made() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let work = env.path("work").display().to_string();
    for (words, why) in [
        (vec![format!("--workspace={work}")], "exists"),
        (vec!["--keep".to_owned()], "--workspace"),
        (vec![format!("--workspace={work}/no/such")], "no/such"),
        (vec![format!("--sockets={work}/{}", "x".repeat(80))], "80"),
        (vec!["--address=10.0.0.1".to_owned()], "10.0.0.1"),
        (vec!["--address=10.0.0.2/30".to_owned(), "--gateway=10.9.0.1".to_owned()], "10.9.0.1"),
        (vec!["--mount=type=nfs,target=/mnt".to_owned()], "nfs"),
        (vec!["--mount=type=tmpfs,target=/no/such/point".to_owned()], "/no/such/point"),
        (vec!["--own=path=/".to_owned()], "`/`"),
        (vec!["--own=file=/x".to_owned()], "file=/x"),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["--", "touch", "ran"]).collect();
        env.run(&words).refused(125, "");
        let said = env.run(&words).err();
        assert!(said.contains(why), "{words:?}: {said}");
    }
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 18.3
#[test]
fn a_given_workspace_is_kept() {
    let env = TestEnv::new();
    let space = env.path("work/space");
    fs::create_dir(&space).unwrap();
    fs::write(space.join("precious"), "").unwrap();
    env.run(["--workspace", space.to_str().unwrap(), "--keep", "sh", "-c", "pwd; touch new"]).with_code(0);
    assert!(space.join("precious").try_exists().unwrap() && space.join("new").try_exists().unwrap());
    remove_dir(&space);
    env.run(["--workspace", space.to_str().unwrap(), "touch", "new"]).with_code(0);
    assert!(!space.try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 18.3
#[test]
fn an_ordinary_user_is_told_what_needs_root() {
    if !is_root() {
        return skip("only root can become an ordinary user");
    }
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    for flag in ["--netns", "--mount=type=tmpfs,target=/mnt"] {
        let done = env.run([flag, "touch", "ran"]);
        assert!(done.err().contains("root"), "{}", done.err());
        done.refused(125, "");
    }
    // A directory needs no privilege.
    env.run(["--workspace", env.path("work/space").to_str().unwrap(), "touch", "ran"]).with_code(0);
    assert!(!env.path("work/space").try_exists().unwrap() && !env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 18.1
#[test]
fn a_file_describes_resources_too() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let work = env.path("work");
    fs::create_dir(work.join("files")).unwrap();
    let text = format!(
        "command = ['sleep', '1000']\n[workspace]\npath = '{0}/space'\n[network]\n[sockets]\n[[mounts]]\ntype = 'tmpfs'\ntarget = '{0}/files'\nsize = '1M'\n",
        work.display()
    );
    fs::write(work.join("box.toml"), text).unwrap();
    let done = env.run(["-d", "--spec", "box.toml"]).with_code(0);
    let sandbox = Sandbox::printed(&env, &done.out());
    let found = traces(&env, &sandbox.id);
    for part in ["/run/netns/penfold-", "work/space", "sockets/", "size=1024k"] {
        assert!(found.iter().any(|trace| trace.contains(part)), "no {part} in {found:#?}");
    }
    wait_until("it runs", || sandbox.leader().is_some());
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    assert_none_there(&env, &sandbox.id);
    env.assert_nothing_left();
}

/// spec: 18.7
#[test]
fn a_run_without_resources_makes_no_call_for_them() {
    if !has_program(&["strace", "-V"]) {
        return;
    }
    let env = TestEnv::new();
    let calls = |words: &[&str]| {
        let log = env.path("calls");
        let mut command = env.command("strace");
        command.args(["-f", "-o", log.to_str().unwrap()]).arg(penfold()).arg("--root").arg(env.root());
        Running::start(command.arg("run").args(words).arg("true")).finish().with_code(0);
        fs::read_to_string(log).unwrap()
    };
    let told = ["NETLINK", "setns", "/run/netns", "xattr", "mount("];
    if is_root() {
        let some = calls(&["--netns"]);
        assert!(told[..3].iter().all(|call| some.contains(call)), "the search finds nothing");
    }
    let none = calls(&[]);
    assert!(none.contains("execve"));
    let found: Vec<&str> = none.lines().filter(|line| told.iter().any(|call| line.contains(call))).collect();
    assert!(found.is_empty(), "{found:?}");
}
