//! Trees on tokio.

use std::future::Future;
use std::process::Stdio;
use std::time::{Duration, Instant};

use penfold_tree::Options;
use penfold_tree::tokio::Tree;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{Handle, as_user, children, has_stray, leaves, shell};

const LONG: Duration = Duration::from_hours(1);
const MOMENT: Duration = Duration::from_millis(50);

/// Tests on both kinds of runtime, in a cgroup and below a subreaper.
fn on_tokio<F: Future<Output = ()>>(test: impl Fn(Options) -> F) {
    for options in [Options::new(), Options::new().cgroup(false)] {
        for mut builder in
            [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()]
        {
            builder.worker_threads(2).enable_all().build().unwrap().block_on(test(options));
        }
    }
}

async fn start(options: &Options, script: &str) -> (Tree, Handle) {
    let mut tree = Tree::spawn_with(options, shell(script).stdin(Stdio::piped())).unwrap();
    let mut said = String::new();
    BufReader::new(tree.stdout.as_mut().unwrap()).read_line(&mut said).await.unwrap();
    (tree, Handle::open(said.trim().parse().unwrap()).sleeps())
}

/// spec: 33.6
#[test]
fn wait_and_end_ends_a_daemon_beside_children_of_the_runtime() {
    on_tokio(async |options| {
        let mut before = Command::new("sleep").arg("3801").kill_on_drop(true).spawn().unwrap();
        let (mut tree, daemon) = start(&options, "setsid sleep 3802 & echo $!; read line; exit 3").await;
        let mut after = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        assert_eq!(tree.try_wait().unwrap(), None);
        tree.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
        let report = tree.wait_and_end().await.unwrap();
        assert!(report.gone() && daemon.has_ended(), "{report}");
        assert_eq!(report.exit().and_then(|exit| exit.code()), Some(3));
        assert!(has_stray(&report, &daemon, "sleep 3802"), "{report:?}");
        assert_eq!(after.wait().await.unwrap().code(), Some(7));
        assert!(before.try_wait().unwrap().is_none());
        before.kill().await.unwrap();
        assert_eq!((leaves(), children()), (Vec::new(), Vec::new()));
    });
}

#[test]
fn trees_and_their_futures_move_between_threads() {
    fn is_sent<T: Send>(_: &T) {}
    on_tokio(async |options| {
        let (mut tree, member) = start(&options, "sleep 3808 & echo $!; wait").await;
        is_sent(&tree);
        is_sent(&tree.wait_and_end());
        let report = tokio::spawn(async move { tree.kill().await }).await.unwrap();
        assert!(report.gone() && member.has_ended(), "{report}");
    });
}

/// spec: 33.6
#[test]
fn dropped_wait_has_no_effect() {
    on_tokio(async |options| {
        let (mut tree, member) = start(&options, "sleep 3803 & echo $!; wait").await;
        assert!(timeout(MOMENT, tree.wait_and_end()).await.is_err());
        assert!(!member.has_ended() && tree.try_wait().unwrap().is_none());
        let report = tree.stop(LONG).await;
        assert!(report.gone() && member.has_ended(), "{report}");
        assert_eq!(tree.wait().await.ok(), report.exit());
    });
}

/// spec: 33.6
#[test]
fn kill_cuts_short_a_stop_that_was_dropped() {
    on_tokio(async |options| {
        let (mut tree, member) = start(&options, "trap '' TERM; sleep 3804 & echo $!; wait; wait").await;
        let begun = Instant::now();
        assert!(timeout(MOMENT, tree.stop(LONG)).await.is_err());
        assert!(!member.has_ended() && tree.try_wait().unwrap().is_none());
        let report = tree.kill().await;
        assert!(report.gone() && member.has_ended(), "{report}");
        assert!(begun.elapsed() < LONG);
    });
}

/// spec: 33.5, 33.6
#[test]
fn dropped_tree_is_gone() {
    on_tokio(async |options| {
        let (tree, daemon) = start(&options, "setsid sleep 3805 & echo $!; wait").await;
        drop(tree);
        assert!(daemon.has_ended());
        assert_eq!((leaves(), children()), (Vec::new(), Vec::new()));
    });
}

/// spec: 33.5, 33.6
#[test]
fn tree_that_is_dropped_during_a_dropped_stop_is_gone_with_the_runtime() {
    for options in [Options::new(), Options::new().cgroup(false)] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let member = runtime.block_on(async {
            let (mut tree, member) = start(&options, "trap '' TERM; sleep 3806 & echo $!; wait; wait").await;
            assert!(timeout(MOMENT, tree.stop(LONG)).await.is_err());
            assert!(!member.has_ended());
            member
        });
        drop(runtime);
        assert!(member.has_ended());
        assert_eq!((leaves(), children()), (Vec::new(), Vec::new()));
    }
}

/// spec: 33.5, 33.6
#[test]
fn dropped_tree_lives_on_request() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut tree, daemon) =
            start(&Options::new().cgroup(false), "setsid sleep 3807 & echo $!; wait").await;
        let leader = Handle::open(i32::try_from(tree.id()).unwrap());
        tree.kill_on_drop(false);
        drop(tree);
        assert!(!daemon.has_ended() && !leader.has_ended());
    });
}

/// spec: 33.6
#[test]
fn ordinary_user_has_the_same_on_tokio() {
    as_user("asynchronous::wait_and_end_ends_a_daemon_beside_children_of_the_runtime");
    as_user("asynchronous::kill_cuts_short_a_stop_that_was_dropped");
}
