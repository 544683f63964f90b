//! Contexts of the code interpreter: what they keep, and what a run answers.

use std::fs;

use serde_json::{Value, json};

use super::{Api, Events};
use crate::support::has_program;

/// Tells whether the host has what contexts run, and says so if not.
pub fn has_interpreters() -> bool {
    has_program(&["python3", "--version"]) && has_program(&["node", "--version"])
}

/// Makes a context in the session `s`, and returns its id.
#[track_caller]
pub fn context(api: &Api, language: &str) -> String {
    let made = api.post("/api/contexts", &json!({ "language": language, "sessionId": "s" })).ok();
    assert_eq!(made["language"], language, "{made}");
    made["contextId"].as_str().unwrap().to_owned()
}

/// Begins to run code.
#[track_caller]
pub fn begin(api: &Api, body: &Value) -> Events {
    Events { is_timed: false, ..api.events("POST", "/api/execute/code", body) }
}

/// Runs code in a context, and returns all events.
#[track_caller]
pub fn run(api: &Api, context: &str, code: &str) -> Vec<Value> {
    begin(api, &json!({ "context_id": context, "code": code })).rest()
}

/// Runs code that must succeed, and returns its standard output and its results.
#[track_caller]
pub fn done(api: &Api, context: &str, code: &str) -> (String, Vec<Value>) {
    let events = run(api, context, code);
    assert_eq!(events.last().unwrap()["type"], "execution_complete", "{code}: {events:?}");
    let results = events.iter().filter(|event| event["type"] == "result").cloned();
    (text(&events, "stdout"), results.collect())
}

/// Runs code that must fail, and returns its error.
#[track_caller]
pub fn error(api: &Api, context: &str, code: &str) -> Value {
    let events = run(api, context, code);
    let last = events.last().unwrap().clone();
    assert_eq!(last["type"], "error", "{code}: {events:?}");
    last
}

/// The joined output of one kind.
pub fn text(events: &[Value], kind: &str) -> String {
    events.iter().filter(|event| event["type"] == kind).map(|event| event["text"].as_str().unwrap()).collect()
}

/// The result of code whose only result is text.
#[track_caller]
fn value(api: &Api, context: &str, code: &str) -> String {
    let (_, results) = done(api, context, code);
    assert_eq!(results.len(), 1, "{code}: {results:?}");
    results[0]["text"].as_str().unwrap_or_else(|| panic!("{code}: {results:?}")).to_owned()
}

/// spec: 15.26
#[test]
fn python_keeps_variables_imports_and_functions() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let events =
        run(&api, &context, "import math, sys\nx = 42\nprint('out é')\nprint('err', file=sys.stderr)");
    assert_eq!((text(&events, "stdout"), text(&events, "stderr")), ("out é\n".into(), "err\n".into()));
    let last = events.last().unwrap();
    assert_eq!(last, &json!({ "type": "execution_complete", "execution_count": 1 }));
    assert_eq!(done(&api, &context, "def double(n):\n    return 2 * n\n"), (String::new(), vec![]));
    assert_eq!(value(&api, &context, "double(x) + math.floor(0.5)"), "84");
    assert_eq!(value(&api, &context, "import asyncio\nawait asyncio.sleep(0)\n'é' + str(x)"), "'é42'");
    assert_eq!(value(&api, &context, "__name__"), "'__main__'");
    // The input is empty.
    assert_eq!(value(&api, &context, "sys.stdin.read()"), "''");
    let error = error(&api, &context, "def fails():\n    return x / 0\nfails()");
    assert_eq!(
        (&error["ename"], &error["evalue"]),
        (&json!("ZeroDivisionError"), &json!("division by zero"))
    );
    let lines = error["traceback"].as_array().unwrap();
    assert_eq!(lines[0], "Traceback (most recent call last):", "{error}");
    assert!(lines.iter().any(|line| line == "    return x / 0"), "{error}");
    assert!(!error.to_string().contains("<driver>"), "{error}");
    for (code, name) in [("def", "SyntaxError"), ("nothing", "NameError"), ("sys.exit(3)", "SystemExit")] {
        assert_eq!(self::error(&api, &context, code)["ename"], name);
    }
    assert_eq!(value(&api, &context, "x"), "42");
}

/// spec: 15.26
#[test]
fn javascript_keeps_variables_and_awaits() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "javascript");
    let events = run(&api, &context, "const fs = require('fs'); console.log('out', 1); console.error('err')");
    assert_eq!((text(&events, "stdout"), text(&events, "stderr")), ("out 1\n".into(), "err\n".into()));
    for (code, wanted) in [
        ("const result = await Promise.resolve(42);\nresult", "42"),
        // A name is declared again.
        ("const result = await Promise.resolve(43);\nresult", "43"),
        ("let counter = 0; function up() { return ++counter; } up()", "1"),
        ("up()", "2"),
        ("class Point { constructor() { this.x = 7; } }; new Point().x", "7"),
        ("Promise.resolve(123)", "123"),
        ("(async () => { const word = await 'hello'; return word + ' world'; })()", "'hello world'"),
        ("typeof fs.readFileSync", "'function'"),
        ("12345678901234567890n", "12345678901234567890n"),
        ("null", "null"),
        ("new Map([[1, 'é']])", "Map(1) { 1 => 'é' }"),
        ("require('child_process').execSync('cat; echo end').toString()", "'end\\n'"),
    ] {
        assert_eq!(value(&api, &context, code), wanted, "{code}");
    }
    assert_eq!(done(&api, &context, "undefined"), (String::new(), vec![]));
    for code in ["({ a: [1, 'é'] })", "{ a: [1, 'é'] }", "const data = { a: [1, 'é'] }; data"] {
        assert_eq!(done(&api, &context, code).1[0]["json"], json!({ "a": [1, "é"] }), "{code}");
    }
    for (code, name, message) in [
        ("nothing", "ReferenceError", "nothing is not defined"),
        ("await Promise.reject(new Error('late'))", "Error", "late"),
        ("throw new TypeError('bad')", "TypeError", "bad"),
        ("throw 5", "Error", "5"),
        ("let = = 1", "SyntaxError", "Unexpected token '='"),
    ] {
        let error = error(&api, &context, code);
        assert_eq!((&error["ename"], &error["evalue"]), (&json!(name), &json!(message)), "{error}");
        assert!(error["traceback"][0].as_str().unwrap().contains(message), "{error}");
    }
    // What fails later ends nothing.
    done(
        &api,
        &context,
        "setTimeout(() => { throw new Error('later'); }, 1); Promise.reject(new Error('also')); 0",
    );
    let events = run(&api, &context, "await new Promise((resolve) => setTimeout(resolve, 50)); counter");
    assert_eq!(events.last().unwrap()["type"], "execution_complete");
}

/// spec: 15.26
#[test]
fn typescript_runs_or_is_refused_with_what_is_missing() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let told = api.post("/api/contexts", &json!({ "language": "typescript", "sessionId": "s" }));
    if told.status != 200 {
        let error = told.fails(500, "INTERNAL_ERROR");
        assert!(error["message"].as_str().unwrap().contains("strip types"), "{error}");
        assert!(error["suggestion"].as_str().unwrap().contains("22.13"), "{error}");
        assert_eq!(api.get("/api/contexts").ok()["contexts"], json!([]), "nothing is left of it");
        return;
    }
    let context = told.ok()["contextId"].as_str().unwrap().to_owned();
    assert_eq!(value(&api, &context, "enum E { One = 1 }\nconst x: number = await E.One; x"), "1");
}

/// spec: 15.26
#[test]
fn objects_show_themselves_in_their_formats() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "python");
    let code = "\
class Table:
    def _repr_html_(self): return '<b>1</b>'
    def __repr__(self): return 'table'
class Picture:
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_svg_(self): raise ValueError
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/latex': '$x$', 'text/markdown': '*x*', 'text/plain': 'x', 'unknown/type': 1}
display(Table(), Bundle())
Picture()";
    let (_, results) = done(&api, &context, code);
    let shown: Vec<Value> = results
        .into_iter()
        .map(|mut result| {
            assert_eq!(result["metadata"], json!({}));
            let fields = result.as_object_mut().unwrap();
            fields.remove("type");
            fields.remove("metadata");
            result
        })
        .collect();
    assert_eq!(
        shown,
        [
            json!({ "html": "<b>1</b>" }),
            json!({ "text": "table" }),
            json!({ "latex": "$x$" }),
            json!({ "markdown": "*x*" }),
            json!({ "png": "iVBORw==" }),
        ]
    );
    assert_eq!(done(&api, &context, "{'a': [1, None]}").1[0]["json"], json!({ "a": [1, null] }));
    assert_eq!(value(&api, &context, "{'a': {1}}"), "{'a': {1}}");
    assert_eq!(value(&api, &context, "Table"), "<class '__main__.Table'>");
    // The figures of a library that is not installed here.
    let code = "\
import sys, types
class Figure:
    def savefig(self, file, **_): file.write(b'figure')
pyplot = types.ModuleType('matplotlib.pyplot')
pyplot.get_fignums = lambda: [1, 2]
pyplot.figure = lambda number: Figure()
pyplot.close = lambda which: print('closed', which)
sys.modules['matplotlib.pyplot'] = pyplot";
    let (out, results) = done(&api, &context, code);
    assert_eq!((out.as_str(), results.len()), ("closed all\n", 2));
    assert_eq!(results[0]["png"], "ZmlndXJl");
    let events = run(&api, &context, "1 / 0");
    let kinds: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(kinds, ["result", "result", "stdout", "error"]);
}

/// spec: 15.26
#[test]
fn output_comes_while_the_code_runs() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let go = api.path("go");
    for (language, code) in [
        (
            "python",
            format!(
                "import os, time\nprint('begun')\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nprint('end')"
            ),
        ),
        (
            "javascript",
            format!(
                "console.log('begun'); while (!require('fs').existsSync({go:?})) await new Promise((done) => setTimeout(done, 10)); console.log('end')"
            ),
        ),
    ] {
        let context = context(&api, language);
        let mut events = begin(&api, &json!({ "context_id": context, "code": code }));
        assert_eq!(events.next().unwrap(), json!({ "type": "stdout", "text": "begun\n" }), "{language}");
        fs::write(&go, "").unwrap();
        assert_eq!(text(&events.rest(), "stdout"), "end\n", "{language}");
        fs::remove_file(&go).unwrap();
    }
}

/// spec: 15.26
#[test]
fn output_that_looks_like_a_mark_is_output() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, code) in [
        (
            "python",
            "import os, subprocess, sys\n\
             mark = b'\\x1e' + b'0' * 32\n\
             fake = mark + b'(\\n' + mark + b'.{\"type\":\"result\",\"text\":\"fake\"}\\n' + mark + b')\\n\\x1e'\n\
             os.write(1, fake)\n\
             _ = os.write(2, fake)\n\
             subprocess.run(['printf', '\\\\036)'], check=True)\n\
             'end'",
        ),
        (
            "javascript",
            "const mark = '\\x1e' + '0'.repeat(32);\n\
             const fake = `${mark}(\\n${mark}.{\"type\":\"result\",\"text\":\"fake\"}\\n${mark})\\n\\x1e`;\n\
             process.stdout.write(fake); require('fs').writeSync(2, fake);\n\
             require('child_process').spawnSync('printf', ['\\\\036)'], { stdio: 'inherit' });\n\
             'end'",
        ),
    ] {
        let context = context(&api, language);
        let events = run(&api, &context, code);
        let mark = format!("\u{1e}{}", "0".repeat(32));
        let fake = format!("{mark}(\n{mark}.{{\"type\":\"result\",\"text\":\"fake\"}}\n{mark})\n\u{1e}");
        assert_eq!(text(&events, "stdout"), format!("{fake}\u{1e})"), "{language}");
        assert_eq!(text(&events, "stderr"), fake, "{language}");
        let results: Vec<_> = events.iter().filter(|event| event["type"] == "result").collect();
        assert_eq!(results.len(), 1, "{results:?}");
        assert_eq!(results[0]["text"], "'end'");
        // No token is in what the code can see by itself.
        if language == "python" {
            assert_eq!(value(&api, &context, "'PENFOLD_DRIVER' in os.environ"), "False");
        }
    }
}

/// spec: 15.26
#[test]
fn large_code_and_large_results_arrive_whole() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, print, size) in
        [("python", "print(text)", "len(text)"), ("javascript", "console.log(text)", "text.length")]
    {
        let context = context(&api, language);
        let long = "é€x".repeat(100_000);
        let (out, results) = done(&api, &context, &format!("text = '{long}'\n{print}\n{size}"));
        assert!(out == format!("{long}\n"), "{language}: {}", out.len());
        assert_eq!(results[0]["text"], "300000", "{language}");
        let twice = if language == "python" { "[text, text]" } else { "[text, text].concat()" };
        assert_eq!(done(&api, &context, twice).1[0]["json"], json!([long, long]), "{language}");
        let huge = if language == "python" { "'x' * 20000000" } else { "'x'.repeat(20000000)" };
        assert!(value(&api, &context, huge).contains("too large"), "{language}");
    }
}

/// spec: 15.26
#[test]
fn results_that_json_cannot_have_are_not_dropped() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    for (language, halves, error_of, deep) in [
        ("python", "['é\\ud83d']", "raise ValueError('\\ud83d')", "x = []\nfor _ in range(200): x = [x]\nx"),
        (
            "javascript",
            "['é\\ud83d']",
            "throw new Error('\\ud83d')",
            "let x = []; for (let n = 0; n < 200; n++) x = [x]; x",
        ),
    ] {
        let context = context(&api, language);
        assert_eq!(done(&api, &context, halves).1[0]["json"], json!(["é\u{fffd}"]), "{language}");
        assert_eq!(error(&api, &context, error_of)["evalue"], "\u{fffd}", "{language}");
        assert_eq!(value(&api, &context, deep), "a result cannot be written as JSON", "{language}");
    }
    let context = context(&api, "python");
    assert_eq!(value(&api, &context, "[float('nan')]"), "[nan]");
}

/// spec: 15.26
#[test]
fn code_runs_one_after_the_other_in_a_context() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let context = context(&api, "javascript");
    done(&api, &context, "let counter = 0");
    let code = "const before = counter; await new Promise((done) => setTimeout(done, 20)); counter = before + 1; console.log(counter)";
    let all: Vec<Events> =
        (0..5).map(|_| begin(&api, &json!({ "context_id": context, "code": code }))).collect();
    let mut outputs: Vec<String> = all.into_iter().map(|events| text(&events.rest(), "stdout")).collect();
    outputs.sort();
    assert_eq!(outputs, ["1\n", "2\n", "3\n", "4\n", "5\n"]);
}

/// spec: 15.26
#[test]
fn contexts_are_listed_and_share_nothing() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    assert_eq!(api.get("/api/interpreter/health").ok()["status"], "healthy");
    let (one, other) = (context(&api, "python"), context(&api, "python"));
    done(&api, &one, "secret = 1");
    assert_eq!(error(&api, &other, "secret")["ename"], "NameError");
    let directory = api.path("here");
    fs::create_dir(&directory).unwrap();
    let body = json!({
        "language": "js", "cwd": directory, "env_vars": { "COLOUR": "blue", "NOTHING": null }, "sessionId": "t",
    });
    let made = api.post("/api/contexts", &body).ok();
    assert_eq!((&made["language"], &made["cwd"]), (&json!("javascript"), &json!(directory)));
    let third = made["contextId"].as_str().unwrap();
    let (out, _) =
        done(&api, third, "console.log(process.env.COLOUR, process.cwd(), 'NOTHING' in process.env)");
    assert_eq!(out, format!("blue {directory} false\n"));
    let list = api.get("/api/contexts").ok();
    let ids: Vec<&Value> =
        list["contexts"].as_array().unwrap().iter().map(|context| &context["id"]).collect();
    assert_eq!(ids, [&json!(one), &json!(other), &json!(third)]);
    api.delete(&format!("/api/contexts/{one}")).ok();
    assert_eq!(api.get("/api/contexts").ok()["contexts"].as_array().unwrap().len(), 2);
    // They are no processes of the API.
    assert_eq!(api.get("/api/process/list").ok()["processes"], json!([]));
}

/// spec: 15.26
#[test]
fn code_without_a_context_runs_in_one_for_its_language() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let run = |code: &str, language: Value, session: &str| {
        begin(&api, &json!({ "code": code, "language": language, "sessionId": session })).rest()
    };
    // One that a client has made is not taken.
    let own = context(&api, "python");
    done(&api, &own, "x = 'own'");
    assert_eq!(run("x", Value::Null, "s")[0]["ename"], "NameError");
    run("x = 1", Value::Null, "s");
    assert_eq!(run("x", json!("python"), "s")[0]["text"], "1");
    assert_eq!(run("x", json!("python"), "t")[0]["ename"], "NameError");
    assert_eq!(run("typeof x", json!("javascript"), "s")[0]["text"], "'undefined'");
    assert_eq!(done(&api, &own, "x").1[0]["text"], "'own'");
    assert_eq!(api.get("/api/contexts").ok()["contexts"].as_array().unwrap().len(), 4);
}

/// spec: 15.26
#[test]
fn requests_that_cannot_be_served_are_refused() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let create = |body: &Value| api.post("/api/contexts", body);
    let error = create(&json!({ "language": "ruby" })).fails(400, "VALIDATION_FAILED");
    assert!(error["message"].as_str().unwrap().contains("ruby"), "{error}");
    create(&json!({ "cwd": "/no/such/place", "sessionId": "s" })).fails(400, "VALIDATION_FAILED");
    create(&json!({ "env_vars": { "A=B": "1" } })).fails(400, "VALIDATION_FAILED");
    // The clients name this directory unless their users name one.
    if !std::path::Path::new("/workspace").is_dir() {
        let made = create(&json!({ "cwd": "/workspace", "sessionId": "s" })).ok();
        assert_eq!(format!("{}\n", made["cwd"].as_str().unwrap()), api.out("s", "pwd"));
    }
    let execute = |body: &Value| api.post("/api/execute/code", body);
    let error = execute(&json!({ "context_id": "fake", "code": "1" })).fails(404, "CONTEXT_NOT_FOUND");
    assert_eq!(error["context"]["contextId"], "fake");
    api.delete("/api/contexts/fake").fails(404, "CONTEXT_NOT_FOUND");
    execute(&json!({ "context_id": "fake" })).fails(400, "VALIDATION_FAILED");
    let python = context(&api, "python");
    execute(&json!({ "context_id": python, "code": "1", "language": "js" }))
        .fails(500, "CODE_EXECUTION_ERROR");
    execute(&json!({ "context_id": python, "code": "1", "language": "ruby" }))
        .fails(400, "VALIDATION_FAILED");
}

/// spec: 15.26
#[test]
fn a_host_without_an_interpreter_says_what_to_install() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let bin = api.path("bin");
    fs::create_dir(&bin).unwrap();
    let create = |language: &str| {
        let body = json!({ "language": language, "env_vars": { "PATH": bin }, "sessionId": "s" });
        api.post("/api/contexts", &body)
    };
    let error = create("python").fails(501, "PYTHON_NOT_AVAILABLE");
    assert!(error["message"].as_str().unwrap().starts_with("Python interpreter not available"), "{error}");
    assert!(error["suggestion"].as_str().unwrap().contains("install Python"), "{error}");
    for language in ["javascript", "typescript"] {
        let error = create(language).fails(500, "INTERNAL_ERROR");
        assert!(
            error["message"].as_str().unwrap().starts_with("JavaScript runtime not available"),
            "{error}"
        );
        assert!(error["suggestion"].as_str().unwrap().contains("install Node.js"), "{error}");
    }
    // One that is there and cannot start.
    let broken = format!("{bin}/python3");
    fs::write(&broken, "#!/bin/sh\necho broken >&2; exit 1\n").unwrap();
    fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let error = create("python").fails(500, "INTERNAL_ERROR");
    assert!(error["message"].as_str().unwrap().ends_with("broken"), "{error}");
    assert_eq!(api.get("/api/contexts").ok()["contexts"], json!([]));
}

/// spec: 15.26
#[test]
fn values_and_errors_of_any_kind_are_told_and_the_context_goes_on() {
    if !has_interpreters() {
        return;
    }
    let api = Api::start();
    let python = context(&api, "python");
    for (code, part) in [
        ("from unittest.mock import Mock; Mock()", "<Mock id="),
        ("from unittest.mock import MagicMock; MagicMock()", "<MagicMock id="),
        (
            "class Any:\n def __getattr__(self, name): raise KeyError(name)\n def __repr__(self): return 'any'\nAny()",
            "any",
        ),
    ] {
        let (_, results) = done(&api, &python, code);
        assert!(results[0]["text"].as_str().unwrap().contains(part), "{code}: {results:?}");
    }
    let told = error(&api, &python, "raise Exception('x' * 20_000_000)");
    assert_eq!((&told["ename"], told["evalue"].as_str().unwrap().len()), (&json!("Exception"), 1 << 20));
    let code = "class Odd(Exception):\n def __str__(self): raise SystemExit\nraise Odd()";
    assert_eq!(error(&api, &python, code)["ename"], "Odd");
    done(&api, &python, "import sys; del sys.stdout");
    assert_eq!(done(&api, &python, "print('again')").0, "again\n");
    let javascript = context(&api, "javascript");
    let told = error(&api, &javascript, "throw new Error('x'.repeat(20_000_000))");
    assert_eq!((&told["ename"], told["evalue"].as_str().unwrap().len()), (&json!("Error"), 1 << 20));
    let code = "throw { get message() { throw 1; } }";
    assert_eq!(error(&api, &javascript, code)["evalue"], "its message cannot be made");
    assert_eq!(done(&api, &javascript, "console.log('again')").0, "again\n");
}
