//! `penfold serve` as pid 1 of a pid namespace, as in a container.

use rustix::process::Signal;

use crate::support::{Process, Running, TestEnv, children, has_program, is_root, penfold, wait_until};

const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// Orphans of every kind are reaped, the detached sandbox of another command among them; TERM ends the server.
///
/// spec: 15.6
#[test]
fn the_server_as_init_reaps_orphans_and_forwards_signals() {
    if !is_root() || !has_program(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true"]) {
        return;
    }
    let env = TestEnv::new();
    for verb in ["serve", "watch"] {
        let mut command = env.command(UNSHARE[0]);
        command.args(&UNSHARE[1..]).arg(penfold()).arg("--root").arg(env.root()).arg(verb);
        if verb == "serve" {
            command.args(["--listen", &format!("unix:{}", env.path("work/init.sock").display())]);
        }
        let running = Running::start(&mut command);
        let init = || children(running.pid()).into_iter().next();
        wait_until("there is an init with a child", || init().is_some_and(|pid| !children(pid).is_empty()));
        let init = init().unwrap();
        // Sandboxes, and orphans that belong to none, from outside: as `docker exec` does.
        let script = "
            $PENFOLD --root $ROOT run -d sh -c 'setsid -f sleep 0.1; (sleep 0.05 &); sleep 0.2' >/dev/null
            id=$($PENFOLD --root $ROOT run -d sleep 600)
            (setsid sh -c 'sleep 0.1; exit 3' &)
            $PENFOLD --root $ROOT kill $id >/dev/null
            $PENFOLD --root $ROOT gc -f --older-than 0 >/dev/null";
        let mut enter = env.command("nsenter");
        enter.args(["-t", &init.to_string(), "-p", "-m", "bash", "-c", script]);
        let finished = Running::start(&mut enter).finish();
        assert_eq!(finished.err(), "");
        // What is left below init is the child that works.
        wait_until("no zombie and no orphan is left", || children(init).len() == 1);
        Process::find(init).unwrap().signal(Signal::TERM);
        running.finish().with_code(0);
    }
    env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
    env.assert_nothing_left();
}
