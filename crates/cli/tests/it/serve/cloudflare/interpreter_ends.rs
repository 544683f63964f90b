//! Contexts of the code interpreter: their ends, and what they outlive.

use std::fs;

use serde_json::{Value, json};

use super::interpreter::{begin, context, done, error, has_interpreters, run, text};
use super::{Api, Events, Server, pid_in};
use crate::support::{Process, TestEnv, wait_until};

/// Begins code that starts a tree of processes and does not end. Returns its stream and the processes: the interpreter, a child, and one
/// in a session of its own.
#[track_caller]
fn begin_tree(api: &Api, context: &str) -> (Events, Vec<Process>) {
    let (own, child, apart) = (api.path("own"), api.path("child"), api.path("apart"));
    for path in [&own, &child, &apart] {
        let _ = fs::remove_file(path);
    }
    let code = format!(
        "import os, subprocess, time\n\
         subprocess.Popen(['sh', '-c', 'trap \"\" TERM; echo $$ > {child}; while :; do sleep 1000; done'])\n\
         subprocess.Popen(['setsid', 'sh', '-c', 'echo $$ > {apart}; exec sleep 1000'])\n\
         open('{own}', 'w').write(str(os.getpid()))\n\
         print('begun')\n\
         time.sleep(1000)"
    );
    let mut events = begin(api, &json!({ "context_id": context, "code": code }));
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    let tree = [own, child, apart].map(|path| Process::find(pid_in(&path)).expect("it lives"));
    (events, tree.into())
}

#[track_caller]
fn assert_ended(tree: &[Process]) {
    assert!(tree.iter().all(Process::has_ended), "something lives");
}

#[track_caller]
fn ended_because(events: Events, reason: &str) {
    let last = events.rest().pop().unwrap();
    assert_eq!((&last["type"], &last["ename"]), (&json!("error"), &json!("InterpreterEnded")), "{last}");
    assert!(last["evalue"].as_str().unwrap().contains(reason), "{last}");
}

/// spec: 15.26
#[test]
fn a_deleted_context_is_gone_with_all_that_its_code_started() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let (events, tree) = begin_tree(&api, &context);
    let path = format!("/api/contexts/{context}");
    assert_eq!(api.delete(&path).ok()["contextId"], context);
    assert_ended(&tree);
    ended_because(events, "was ended while its code ran");
    api.delete(&path).fails(404, "CONTEXT_NOT_FOUND");
    api.post("/api/execute/code", &json!({ "context_id": context, "code": "1" }))
        .fails(404, "CONTEXT_NOT_FOUND");
    // The session goes on.
    assert_eq!(api.out("s", "echo usable"), "usable\n");
}

/// spec: 15.26
#[test]
fn nothing_is_left_of_code_whose_session_is_deleted() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let (python, javascript) = (context(&api, "python"), context(&api, "javascript"));
    let (events, tree) = begin_tree(&api, &python);
    let node = done(&api, &javascript, "console.log(process.pid)").0.trim().parse().unwrap();
    let node = Process::find(node).expect("it lives");
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    assert_ended(&tree);
    assert!(node.has_ended());
    ended_because(events, "was ended while its code ran");
    assert_eq!(api.get("/api/contexts").ok()["contexts"], json!([]));
    let body = json!({ "context_id": python, "code": "1" });
    api.post("/api/execute/code", &body).fails(404, "CONTEXT_NOT_FOUND");
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.26
#[test]
fn nothing_is_left_of_code_whose_sandbox_is_killed() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let (events, tree) = begin_tree(&api, &context);
    api.env.call(["kill", "--all", "-f"]).with_code(0);
    assert_ended(&tree);
    ended_because(events, "was ended while its code ran");
    let Api { env, server } = api;
    server.end();
    env.call(["rm", "--all", "-f"]);
    env.assert_nothing_left();
}

/// spec: 15.26
#[test]
fn an_interpreter_that_has_ended_is_told_and_does_not_hang() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, code, exit) in [
        ("python", "import os; print('last'); os._exit(3)", "exit code 3"),
        ("python", "import os; print('last', flush=True); os.kill(os.getpid(), 9)", "exit code 137"),
        ("javascript", "console.log('last'); process.exit(4)", "exit code 4"),
    ] {
        let context = context(&api, language);
        let events = run(&api, &context, code);
        let last = events.last().unwrap();
        assert_eq!(
            (&last["type"], &last["ename"]),
            (&json!("error"), &json!("InterpreterEnded")),
            "{events:?}"
        );
        assert!(last["evalue"].as_str().unwrap().contains(exit), "{last}");
        if exit != "exit code 3" {
            assert_eq!(text(&events, "stdout"), "last\n");
        }
        let body = json!({ "context_id": context, "code": "1" });
        let error = api.post("/api/execute/code", &body).fails(500, "INTERNAL_ERROR");
        assert_eq!(
            error["message"],
            "Context executor has terminated. Please delete and recreate the context."
        );
        assert_eq!(api.get("/api/contexts").ok()["contexts"], json!([]), "{language}");
        api.delete(&format!("/api/contexts/{context}")).ok();
        api.post("/api/execute/code", &body).fails(404, "CONTEXT_NOT_FOUND");
    }
    // The context for code without one is made again.
    let body = |code: &str| json!({ "code": code, "sessionId": "s" });
    assert_eq!(begin(&api, &body("import os; os._exit(0)")).rest()[0]["ename"], "InterpreterEnded");
    assert_eq!(begin(&api, &body("1")).rest()[0]["text"], "1");
}

/// spec: 15.26
#[test]
fn an_interpreter_that_ends_while_code_waits_for_it_is_told_to_all() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let go = api.path("go");
    let code = format!(
        "import os, time\nprint('begun')\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nos._exit(3)"
    );
    let mut first = begin(&api, &json!({ "context_id": context, "code": code }));
    assert_eq!(first.next().unwrap()["text"], "begun\n");
    let second = begin(&api, &json!({ "context_id": context, "code": "1" }));
    // More than the input of the interpreter has room for.
    let large = format!("'{}'", "x".repeat(200_000));
    let third = begin(&api, &json!({ "context_id": context, "code": large }));
    fs::write(&go, "").unwrap();
    ended_because(first, "exit code 3");
    ended_because(second, "exit code 3");
    ended_because(third, "");
}

/// spec: 15.26
#[test]
fn a_time_limit_interrupts_the_code_and_the_state_stays() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, before, codes) in [
        (
            "python",
            "kept = 1",
            vec![
                "import time; time.sleep(1000)",
                "while True: pass",
                "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
            ],
        ),
        ("javascript", "let kept = 1", vec!["await new Promise(() => {})", "while (true) {}"]),
    ] {
        let context = context(&api, language);
        done(&api, &context, before);
        for code in codes {
            let body = json!({ "context_id": context, "code": code, "timeout_ms": 200 });
            let events = begin(&api, &body).rest();
            let last = events.last().unwrap();
            assert_eq!(
                (&last["ename"], &last["evalue"]),
                (&json!("TimeoutError"), &json!("the code ran longer than 200 ms")),
                "{code}: {events:?}"
            );
            assert_eq!(done(&api, &context, "kept").1[0]["text"], "1", "{code}");
        }
        // A limit that was not reached ends nothing later.
        let body = json!({ "context_id": context, "code": "kept", "timeout_ms": 60_000 });
        assert_eq!(begin(&api, &body).rest()[0]["text"], "1");
    }
}

/// spec: 15.26
#[test]
fn a_context_that_cannot_be_interrupted_ends_at_the_time_limit() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, code) in [
        (
            "python",
            "import signal, time, subprocess\n\
             signal.signal(signal.SIGALRM, signal.SIG_IGN)\n\
             child = subprocess.Popen(['sleep', '1000'])\n\
             print(child.pid)\n\
             time.sleep(1000)",
        ),
        (
            "javascript",
            "const child = require('child_process').spawn('sleep', ['1000']); console.log(child.pid);\n\
             require('child_process').execSync('sleep 1000')",
        ),
    ] {
        let context = context(&api, language);
        let mut events = begin(&api, &json!({ "context_id": context, "code": code, "timeout_ms": 200 }));
        let pid = events.next().unwrap()["text"].as_str().unwrap().trim().parse().unwrap();
        let child = Process::find(pid).expect("it lives");
        let last = events.rest().pop().unwrap();
        assert_eq!(last["ename"], "TimeoutError", "{language}: {last}");
        assert!(last["evalue"].as_str().unwrap().contains("its context was ended"), "{last}");
        assert!(child.has_ended(), "{language}");
        api.post("/api/execute/code", &json!({ "context_id": context, "code": "1" }))
            .fails(500, "INTERNAL_ERROR");
    }
}

/// spec: 15.26
#[test]
fn code_goes_on_when_its_client_leaves_and_its_output_is_nobody_elses() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let (go, made) = (api.path("go"), api.path("made"));
    let code = format!(
        "import os, time\nprint('begun')\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nprint('lost')\nx = 5\nopen({made:?}, 'w').close()"
    );
    let mut events = begin(&api, &json!({ "context_id": context, "code": code }));
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    drop(events);
    let next = begin(&api, &json!({ "context_id": context, "code": "print('mine'); x" }));
    fs::write(&go, "").unwrap();
    let events = next.rest();
    assert_eq!((text(&events, "stdout").as_str(), &events[1]["text"]), ("mine\n", &json!("5")), "{events:?}");
    assert!(fs::exists(&made).unwrap());
}

/// spec: 15.26
#[test]
fn a_fork_of_the_interpreter_runs_no_code_of_others() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let code = "import os\nchild = os.fork()\nif child == 0:\n    print('child', flush=True)\nelse:\n    os.waitpid(child, 0)\n    print('parent')";
    let events = run(&api, &context, code);
    assert_eq!(text(&events, "stdout"), "child\nparent\n", "{events:?}");
    assert_eq!(done(&api, &context, "import os; print('once')").0, "once\n");
}

/// spec: 15.26
#[test]
fn a_context_outlives_the_server() {
    if !has_interpreters() {
        return;
    }
    let mut api = Api::start();
    let context = context(&api, "python");
    done(&api, &context, "x = 7");
    let go = api.path("go");
    let code = format!(
        "import os, time\nprint('begun')\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nx += 1"
    );
    let mut events = begin(&api, &json!({ "context_id": context, "code": code }));
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    api.replace_server();
    let list = api.get("/api/contexts").ok();
    assert_eq!(list["contexts"][0]["id"], context.as_str());
    let next = begin(&api, &json!({ "context_id": context, "code": "x" }));
    fs::write(&go, "").unwrap();
    assert_eq!(next.rest()[0]["text"], "8");
    api.delete(&format!("/api/contexts/{context}")).ok();
}

/// spec: 15.26
#[test]
fn a_run_ends_beside_a_process_whose_output_has_no_end() {
    if !has_interpreters() {
        return;
    }
    let api = Api::with(&["--output-limit", "1M"]);
    let context = context(&api, "python");
    let code = "import subprocess\nchild = subprocess.Popen(['yes', 'x' * 1000])\nchild.pid";
    let events = run(&api, &context, code);
    let last = events.last().unwrap();
    assert!(last["type"] == "execution_complete" || last["ename"] == "OutputLost", "{last}");
    let events = run(&api, &context, "child.kill(); child.wait()");
    assert!(["execution_complete", "error"].contains(&events.last().unwrap()["type"].as_str().unwrap()));
    assert_eq!(done(&api, &context, "print('end')").0, "end\n");
}

/// spec: 15.26
#[test]
fn a_client_that_reads_late_gets_the_last_output_and_the_end() {
    if !has_interpreters() {
        return;
    }
    let api = Api::with(&["--output-limit", "1M"]);
    for (language, code) in [
        (
            "python",
            "import os, time\n\
             print('begun')\n\
             while not os.path.exists(GO): time.sleep(0.01)\n\
             for _ in range(300): print('x' * 99_999)\n\
             open(MADE, 'w').close()\n\
             print('last')",
        ),
        (
            "javascript",
            "const fs = require('fs'); console.log('begun');\n\
             while (!fs.existsSync(GO)) await new Promise((done) => setTimeout(done, 10));\n\
             for (let n = 0; n < 300; n++) console.log('x'.repeat(99_999));\n\
             fs.writeFileSync(MADE, '');\n\
             console.log('last')",
        ),
    ] {
        let context = context(&api, language);
        let [go, made] = ["go", "made"].map(|name| api.path(&format!("{name}-{language}")));
        let code = code.replace("GO", &format!("{go:?}")).replace("MADE", &format!("{made:?}"));
        let mut events = begin(&api, &json!({ "context_id": context, "code": code }));
        assert_eq!(events.next().unwrap()["text"], "begun\n");
        fs::write(&go, "").unwrap();
        // The code waits for no reader.
        wait_until("all is written", || fs::exists(&made).unwrap());
        let events = events.rest();
        assert_eq!(events.last().unwrap()["type"], "execution_complete", "{language}");
        assert!(text(&events, "stdout").ends_with("x\nlast\n"), "{language}");
        let lost = events.iter().filter_map(|event| event["bytes"].as_u64()).sum::<u64>();
        assert!(lost > 20_000_000, "{language}: {lost}");
    }
}

/// spec: 15.26
#[test]
fn a_run_whose_end_was_lost_in_later_output_ends() {
    if !has_interpreters() {
        return;
    }
    let api = Api::with(&["--output-limit", "1M"]);
    let context = context(&api, "python");
    let [go, written, more, after, made] =
        ["go", "written", "more", "after", "made"].map(|name| api.path(name));
    let code = format!(
        "import os, subprocess, time\n\
         def await_file(path):\n    \
             while not os.path.exists(path): time.sleep(0.01)\n\
         def fill():\n    \
             for _ in range(100): print('x' * 99_999)\n\
         print('begun')\n\
         later = 'until test -e {after}; do sleep 0.05; done; head -c 5000000 /dev/zero; touch {made}; sleep 1000'\n\
         child = subprocess.Popen(['sh', '-c', later])\n\
         await_file({go:?}); fill(); open({written:?}, 'w').close(); await_file({more:?}); fill()"
    );
    let mut events = begin(&api, &json!({ "context_id": context, "code": code }));
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    fs::write(&go, "").unwrap();
    wait_until("the first part is written", || fs::exists(&written).unwrap());
    // The first request for the marks comes while the code runs, and what it makes the interpreter write is lost.
    while events.next().unwrap()["type"] != "lagged" {}
    fs::write(&more, "").unwrap();
    // The next run begins after the end of this one.
    assert_eq!(done(&api, &context, "print('next')").0, "next\n");
    fs::write(&after, "").unwrap();
    wait_until("all is written", || fs::exists(&made).unwrap());
    let last = events.rest().pop().unwrap();
    assert_eq!(last["ename"], "OutputLost", "{last}");
    assert_eq!(done(&api, &context, "print('usable')").0, "usable\n");
}

/// spec: 15.26
#[test]
fn two_servers_send_code_to_one_context() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let other = Server::start_with(&api.env, "other.sock", &["--api", "cloudflare"], |_| ());
    let context = context(&api, "python");
    let Api { env, server } = api;
    let apis = [Api { env: TestEnv::new(), server }, Api { env: TestEnv::new(), server: other }];
    std::thread::scope(|scope| {
        for (number, api) in apis.iter().enumerate() {
            for letter in ['a', 'b', 'c', 'd'] {
                let context = &context;
                scope.spawn(move || {
                    let long = letter.to_string().repeat(50_000 + number);
                    let (out, _) = done(api, context, &format!("print('{long}')"));
                    assert!(out == format!("{long}\n"), "{letter}{number}: {}", out.len());
                });
            }
        }
    });
    apis[1].delete(&format!("/api/contexts/{context}")).ok();
    apis[0].delete(&format!("/api/contexts/{context}")).fails(404, "CONTEXT_NOT_FOUND");
    drop(apis);
    drop(env);
}

/// spec: 15.26
#[test]
fn a_server_that_ends_says_so_and_the_code_goes_on() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let (go, made) = (api.path("go"), api.path("made"));
    let code = format!(
        "import os, time\nprint('begun')\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nopen({made:?}, 'w').close()"
    );
    let mut events = begin(&api, &json!({ "context_id": context, "code": code }));
    assert_eq!(events.next().unwrap()["text"], "begun\n");
    let Api { env, server } = api;
    server.end();
    let last = events.next().unwrap();
    assert_eq!((&last["type"], &last["ename"]), (&json!("error"), &json!("ServerEnding")), "{last}");
    fs::write(&go, "").unwrap();
    wait_until("the code has gone on", || fs::exists(&made).unwrap());
    env.call(["rm", "--all", "-f"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 15.26
#[test]
fn a_session_has_a_number_of_contexts() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let all: Vec<String> = (0..32).map(|_| context(&api, "python")).collect();
    let body = json!({ "language": "python", "sessionId": "s" });
    let error = api.post("/api/contexts", &body).fails(429, "INTERNAL_ERROR");
    assert!(error["message"].as_str().unwrap().contains("32"), "{error}");
    api.delete(&format!("/api/contexts/{}", all[0])).ok();
    context(&api, "python");
    // One that has ended takes no place.
    error_of(&api, &all[1]);
    wait_until("it is not listed", || {
        api.get("/api/contexts").ok()["contexts"].as_array().is_some_and(|all| all.len() == 31)
    });
    context(&api, "python");
}

#[track_caller]
fn error_of(api: &Api, context: &str) -> Value {
    error(api, context, "import os; os._exit(0)")
}

/// spec: 15.26
#[test]
fn a_time_limit_ends_a_context_whose_interpreter_is_stopped() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, code) in [
        ("python", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
        ("javascript", "process.kill(process.pid, 'SIGSTOP')"),
    ] {
        let context = context(&api, language);
        let events = begin(&api, &json!({ "context_id": context, "code": code, "timeout_ms": 300 })).rest();
        assert_eq!(events.last().unwrap()["ename"], "TimeoutError", "{events:?}");
        api.delete(&format!("/api/contexts/{context}")).ok();
    }
}
