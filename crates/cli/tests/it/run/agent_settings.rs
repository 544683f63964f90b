//! `penfold agent`: changes of the settings of coding agents.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Finished, Running, TestEnv, USER, is_root, json as read, penfold};

const MCP: &str = r#"{
  "mcpServers": {
    "inline": { "command": "npx", "args": ["-y", "é"], "env": {"K": "v"} },
    "lines": {
      "args": [
        "--repo"
      ],
      "command": "uvx"
    },
    "plain": { "command": "plain" },
    "remote": { "url": "https://example.test/mcp" }
  }
}
"#;
/// JSON with comments, as VS Code and opencode write it.
const COMMENTED: &str = "{\r\n\t// mine\r\n\t\"servers\": {\r\n\t\t\"x\": {\r\n\t\t\t\"command\": \"node\", // the runtime\r\n\t\t\t\"args\": [\"x.js\",],\r\n\t\t},\r\n\t},\r\n\t/* opencode */\r\n\t\"mcp\": {\"y\": {\"command\": [\"bun\", \"y\"]}, \"servers\": {\"z\": {\"command\": \"z\"}}},\r\n\t\"projects\": {\"/p\": {\"mcpServers\": {\"q\": {\"command\": \"q\", \"args\": [\"1\"]}}}}\r\n}";

fn agent(env: &TestEnv, words: &[&str]) -> Finished {
    env.call(["agent"].iter().chain(words))
}

/// A penfold of this test's own, beside which a link may be made, with a home.
fn installed(env: &TestEnv, words: &[&str]) -> Finished {
    let program = env.path("work/penfold");
    if !program.try_exists().unwrap() {
        fs::copy(penfold(), &program).unwrap();
    }
    let mut command = env.command(program);
    command.arg("agent").args(words).env("HOME", env.path("work/home")).env_remove("CLAUDE_CONFIG_DIR");
    Running::start(&mut command).finish()
}

fn wrapped(words: &[&str]) -> Value {
    json!(["run", "--on-stdin-close", "stop", "--"].iter().chain(words).collect::<Vec<_>>())
}

/// spec: 8.14
#[test]
fn servers_are_wrapped_once_and_unwrapped_to_the_byte() {
    let env = TestEnv::new();
    for (text, servers) in [(MCP, 3), (COMMENTED, 4)] {
        let path = env.path("work/mcp.json");
        fs::write(&path, text).unwrap();
        let shown = agent(&env, &["wrap", "-n", "mcp.json"]).with_code(0);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert!(shown.out().contains("\"--on-stdin-close\""), "{}", shown.out());
        let made = agent(&env, &["wrap", "mcp.json"]).with_code(0);
        let changes = |text: String| text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(changes(shown.out()), changes(made.out()));
        assert_eq!(fs::read_to_string(env.path("work/mcp.json.penfold-backup")).unwrap(), text);
        assert_eq!(agent(&env, &["wrap", "mcp.json"]).with_code(0).out(), "");
        let status = agent(&env, &["status", "mcp.json"]).with_code(0).out();
        assert_eq!(status.matches(" wrapped").count(), servers, "{status}");
        agent(&env, &["uninstall", "mcp.json"]).with_code(0);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(agent(&env, &["uninstall", "mcp.json"]).with_code(0).out(), "");
        let status = agent(&env, &["status", "mcp.json"]).with_code(0).out();
        assert_eq!(status.matches(" not wrapped").count(), servers, "{status}");
    }
}

/// Comments, empty lists, another spelling of a text, and a byte order mark.
///
/// spec: 8.14
#[test]
fn servers_in_any_layout_are_unwrapped_to_the_byte() {
    let env = TestEnv::new();
    let path = env.path("work/mcp.json");
    for server in [
        "{\"command\": \"x\", \"args\": []}",
        "{\"command\": \"x\", \"args\": [ ]}",
        "{\"command\": \"x\", \"args\": [\n]}",
        "{\"command\": \"x\", \"args\": [ // none\n ]}",
        "{\"command\": \"x\", \"args\": [/* none */],}",
        "{\"args\": [ /* first */ \"1\" /* last */, ], \"command\": \"x\" /* it */}",
        "{\"command\": [ // it\n \"x\" // end\n]}",
        "{\"command\": \"\\/bin\\/\\u0078\", \"args\": [\"a\\/b\"]}",
        "{\"command\": [\"\\/bin\\/x\",]}",
    ] {
        for mark in ["", "\u{feff}"] {
            let text = format!("{mark}{{\"mcpServers\": {{\"s\": {server}}}}}\n");
            fs::write(&path, &text).unwrap();
            agent(&env, &["wrap", "mcp.json"]).with_code(0);
            let wrapped = fs::read_to_string(&path).unwrap();
            assert!(wrapped.contains("\"--on-stdin-close\"") && wrapped.starts_with(mark), "{wrapped}");
            assert_eq!(agent(&env, &["wrap", "mcp.json"]).with_code(0).out(), "", "{wrapped}");
            agent(&env, &["uninstall", "mcp.json"]).with_code(0);
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "{wrapped}");
            assert_eq!(fs::read_to_string(env.path("work/mcp.json.penfold-backup")).unwrap(), wrapped);
        }
    }
}

/// spec: 8.14
#[test]
fn comments_that_were_added_since_stay() {
    let env = TestEnv::new();
    let path = env.path("work/mcp.json");
    for (wrapped, plain) in [
        (
            r#"{"command": "/p/penfold", /* a */ "args": ["run", "--on-stdin-close", "stop", "--", /* b */ "x", // c
 "1"]}"#,
            "{\"command\": \"x\", /* a */ \"args\": [ /* b */ // c\n \"1\"]}",
        ),
        (
            "{\"command\": \"/p/penfold\", \"args\": [\"run\", \"--on-stdin-close=stop\", // why\n\"--\", \"x\"]}",
            "{\"command\": \"x\" // why\n}",
        ),
    ] {
        fs::write(&path, format!("{{\"servers\": {{\"s\": {wrapped}}}}}")).unwrap();
        agent(&env, &["uninstall", "mcp.json"]).with_code(0);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{{\"servers\": {{\"s\": {plain}}}}}"),
            "{wrapped}"
        );
    }
}

/// spec: 8.14
#[test]
fn penfold_with_another_name_wraps_once() {
    let env = TestEnv::new();
    let program = env.path("work/pf-next");
    fs::copy(penfold(), &program).unwrap();
    fs::write(env.path("work/mcp.json"), MCP).unwrap();
    let call = |words: &[&str]| {
        let mut command = env.command(&program);
        Running::start(command.arg("agent").args(words)).finish().with_code(0).out()
    };
    assert!(call(&["wrap", "mcp.json"]).contains("/pf-next\""));
    assert_eq!(call(&["wrap", "mcp.json"]), "");
    // The penfold that runs takes the place of the other.
    agent(&env, &["wrap", "mcp.json"]).with_code(0);
    let text = fs::read_to_string(env.path("work/mcp.json")).unwrap();
    assert!(!text.contains("/pf-next\"") && text.matches("--on-stdin-close").count() == 3, "{text}");
    call(&["uninstall", "mcp.json"]);
    assert_eq!(fs::read_to_string(env.path("work/mcp.json")).unwrap(), MCP);
}

/// spec: 8.14
#[test]
fn all_files_are_wrapped_although_one_cannot_be() {
    let env = TestEnv::new();
    fs::write(env.path("work/none.json"), "{}").unwrap();
    fs::write(env.path("work/mcp.json"), MCP).unwrap();
    let files = ["none.json", "missing.json", "mcp.json"];
    let done = agent(&env, &[&["wrap"], &files[..]].concat()).with_code(1);
    for part in ["cannot change `none.json`: it names no MCP server", "cannot read `missing.json`"] {
        assert!(done.err().contains(part), "no `{part}` in {}", done.err());
    }
    assert_ne!(fs::read_to_string(env.path("work/mcp.json")).unwrap(), MCP);
    let done = agent(&env, &[&["status"], &files[..]].concat()).with_code(1);
    assert_eq!(done.out().matches(" wrapped").count(), 3, "{}", done.out());
}

/// spec: 8.14
#[test]
fn file_with_two_names_keeps_both() {
    let env = TestEnv::new();
    fs::write(env.path("work/mcp.json"), MCP).unwrap();
    fs::hard_link(env.path("work/mcp.json"), env.path("work/other.json")).unwrap();
    agent(&env, &["wrap", "mcp.json"]).with_code(0);
    let text = fs::read_to_string(env.path("work/other.json")).unwrap();
    assert!(text.contains("--on-stdin-close"), "{text}");
    assert_eq!(fs::metadata(env.path("work/mcp.json")).unwrap().nlink(), 2);
    agent(&env, &["uninstall", "other.json"]).with_code(0);
    assert_eq!(fs::read_to_string(env.path("work/mcp.json")).unwrap(), MCP);
}

/// spec: 8.14
#[test]
fn wrapped_servers_are_the_same_servers_below_penfold() {
    let env = TestEnv::new();
    fs::write(env.path("work/mcp.json"), MCP).unwrap();
    agent(&env, &["wrap", "mcp.json"]).with_code(0);
    let servers = &read(&env.path("work/mcp.json")).unwrap()["mcpServers"];
    let program = json!(penfold().to_str().unwrap());
    for (name, words) in
        [("inline", &["npx", "-y", "é"][..]), ("lines", &["uvx", "--repo"]), ("plain", &["plain"])]
    {
        assert_eq!(
            (&servers[name]["command"], &servers[name]["args"]),
            (&program, &wrapped(words)),
            "{name}"
        );
    }
    assert_eq!(servers["inline"]["env"], json!({"K": "v"}));
    assert_eq!(servers["remote"], json!({"url": "https://example.test/mcp"}));
    // Flags of the user stay, and are no reason to wrap twice.
    let text = fs::read_to_string(env.path("work/mcp.json")).unwrap();
    let text = text.replacen("\"stop\", \"--\"", "\"stop\", \"--grace=2s\", \"--\"", 1);
    fs::write(env.path("work/mcp.json"), text).unwrap();
    assert_eq!(agent(&env, &["wrap", "mcp.json"]).with_code(0).out(), "");
    agent(&env, &["uninstall", "mcp.json"]).with_code(0);
    assert_eq!(fs::read_to_string(env.path("work/mcp.json")).unwrap(), MCP);
}

/// spec: 8.14
#[test]
fn wrapped_server_speaks_with_its_client() {
    let env = TestEnv::new();
    fs::write(env.path("work/mcp.json"), r#"{"mcpServers": {"cat": {"command": "cat"}}}"#).unwrap();
    agent(&env, &["wrap", "mcp.json"]).with_code(0);
    let server = &read(&env.path("work/mcp.json")).unwrap()["mcpServers"]["cat"];
    let arguments = server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let mut command = env.command(server["command"].as_str().unwrap());
    command.args(arguments).env("XDG_RUNTIME_DIR", env.root());
    let mut running = Running::start(command.stdin(Stdio::piped()));
    running.say("hello\n");
    running.hear("hello", 1);
    running.hang_up();
    running.finish().with_code(0);
}

/// spec: 8.14
#[test]
fn file_keeps_its_mode_and_its_link() {
    let env = TestEnv::new();
    let path = env.path("work/real.json");
    fs::write(&path, MCP).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real.json", env.path("work/link.json")).unwrap();
    let before = fs::metadata(&path).unwrap();
    agent(&env, &["wrap", "link.json"]).with_code(0);
    let after = fs::metadata(&path).unwrap();
    assert!(fs::symlink_metadata(env.path("work/link.json")).unwrap().is_symlink());
    assert_ne!(fs::read_to_string(&path).unwrap(), MCP);
    assert_eq!((before.mode(), before.uid(), before.gid()), (after.mode(), after.uid(), after.gid()));
    let backup = fs::metadata(env.path("work/real.json.penfold-backup")).unwrap();
    assert_eq!(backup.mode(), before.mode());
    let mut names: Vec<_> =
        fs::read_dir(env.path("work")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["link.json", "real.json", "real.json.penfold-backup"]);
}

/// spec: 8.14
#[test]
fn settings_that_cannot_be_changed_stay_as_they_are() {
    let env = TestEnv::new();
    let cases = [
        ("{\"mcpServers\" {}}", "it is no JSON: expected colon"),
        ("{\"a\": 1 \"b\": 2}", "it is no JSON"),
        ("[1]", "it names no MCP server with a `command`"),
        ("", "it names no MCP server with a `command`"),
        (r#"{"mcpServers": {"u": {"url": "x"}}}"#, "it names no MCP server with a `command`"),
        (r#"{"mcpServers": {"u": {"command": []}}}"#, "it names no MCP server with a `command`"),
        (
            r#"{"mcpServers": {"s": {"command": "a", "command": "b"}}}"#,
            "an object has the key `command` twice",
        ),
        (r#"{"mcpServers": {"s": {"command": "c", "args": "x"}}}"#, "`args` of the server `s` is no list"),
    ];
    for (text, part) in cases {
        fs::write(env.path("work/mcp.json"), text).unwrap();
        agent(&env, &["wrap", "mcp.json"]).refused(1, part);
        assert_eq!(fs::read_to_string(env.path("work/mcp.json")).unwrap(), text);
    }
    agent(&env, &["wrap", "missing.json"]).refused(1, "cannot read `missing.json`");
    rustix::fs::mkfifoat(rustix::fs::CWD, env.path("work/pipe"), 0o600.into()).unwrap();
    agent(&env, &["wrap", "pipe"]).refused(1, "cannot read `pipe`: it is no regular file");
    agent(&env, &["uninstall", "--project", "mcp.json"]).refused(2, "`--project` is for agents");
    agent(&env, &[]).refused(2, "an action is missing");
    agent(&env, &["install", "emacs"]).refused(2, "accepted: claude");
}

/// spec: 8.14
#[test]
fn install_and_uninstall_leave_the_settings_as_they_were() {
    let env = TestEnv::new();
    let settings = env.path("work/home/.claude/settings.json");
    let link = env.path("work/penfold-sh");
    installed(&env, &["install", "-n", "claude"]).with_code(0);
    assert!(!settings.try_exists().unwrap() && !link.is_symlink());
    installed(&env, &["install", "claude"]).with_code(0);
    let variable = |path| read(path).unwrap()["env"]["CLAUDE_CODE_SHELL_PREFIX"].clone();
    assert_eq!(variable(&settings), json!(link.to_str().unwrap()));
    for text in [
        "{\n    \"model\": \"é\"\n}\n",
        "{\"env\": {\"A\": \"1\"}}",
        "{\n\t\"env\": {\n\t\t\"A\": \"1\" // a\n\t}\n}",
        "{}",
        "{\n}",
        "{ // none\n}",
        "{\"model\": \"x\"}",
        "{\"model\": \"x\", // last\n}",
        "{\"env\": {}}",
        "{\"env\": { }, \"model\": \"x\"}",
        "{\n  \"env\": {\n    // none\n  }\n}",
        "\u{feff}{\"env\": {/* none */}}\r\n",
    ] {
        fs::write(&settings, text).unwrap();
        installed(&env, &["install", "claude"]).with_code(0);
        assert_eq!(installed(&env, &["install", "claude"]).with_code(0).out(), "");
        let status = installed(&env, &["status"]).with_code(0).out();
        assert!(status.lines().any(|line| line.ends_with(" installed") && !line.contains("not")), "{status}");
        installed(&env, &["uninstall", "claude"]).with_code(0);
        assert_eq!(fs::read_to_string(&settings).unwrap(), text);
    }
    installed(&env, &["install", "--project", "claude"]).with_code(0);
    assert_eq!(variable(&env.path("work/.claude/settings.local.json")), json!(link.to_str().unwrap()));
    // The link is a shell.
    let mut shell = env.command(&link);
    let finished = Running::start(shell.arg("exit 3").env("XDG_RUNTIME_DIR", env.root())).finish();
    finished.with_code(3);
}

/// spec: 8.14
#[test]
fn program_of_another_is_not_replaced() {
    let env = TestEnv::new();
    fs::create_dir_all(env.path("work/home/.claude")).unwrap();
    let settings = env.path("work/home/.claude/settings.json");
    let theirs = r#"{"env": {"CLAUDE_CODE_SHELL_PREFIX": "/opt/audit.sh"}}"#;
    for (text, part) in [
        (theirs, "`CLAUDE_CODE_SHELL_PREFIX` is \"/opt/audit.sh\" already"),
        (r#"{"env": 3}"#, "`env` is no object"),
        ("3", "it holds no object"),
    ] {
        fs::write(&settings, text).unwrap();
        installed(&env, &["install", "claude"]).refused(1, part);
        installed(&env, &["uninstall", "claude"]).with_code(0);
        assert_eq!(fs::read_to_string(&settings).unwrap(), text);
    }
    fs::write(&settings, "{}").unwrap();
    let _ = fs::remove_file(env.path("work/penfold-sh"));
    fs::write(env.path("work/penfold-sh"), "#!/bin/sh\n").unwrap();
    installed(&env, &["install", "claude"]).refused(1, "exists, and is no link to this penfold");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "{}");
}

/// spec: 8.14
#[test]
fn after_an_install_for_all_users_the_link_goes_below_the_home() {
    let env = TestEnv::new();
    let program = env.path("work/bin/penfold");
    let home = env.path("work/home");
    fs::create_dir(env.path("work/bin")).unwrap();
    fs::create_dir(&home).unwrap();
    fs::copy(penfold(), &program).unwrap();
    if is_root() {
        chown(&home, Some(USER), Some(USER)).unwrap();
    }
    fs::set_permissions(env.path("work/bin"), fs::Permissions::from_mode(0o555)).unwrap();
    let install = || {
        let mut command = env.command(&program);
        command.args(["agent", "install", "claude"]).env("HOME", &home).env_remove("CLAUDE_CONFIG_DIR");
        if is_root() {
            command.uid(USER).gid(USER);
        }
        Running::start(&mut command).finish().with_code(0)
    };
    install();
    let link = home.join(".local/bin/penfold-sh");
    assert_eq!(fs::read_link(&link).unwrap(), program);
    let settings = read(&home.join(".claude/settings.json")).unwrap();
    assert_eq!(settings["env"]["CLAUDE_CODE_SHELL_PREFIX"], json!(link.to_str().unwrap()));
    assert_eq!(install().out(), "", "a repeated action changes nothing");
    let mut shell = env.command(&link);
    Running::start(shell.arg("exit 3").env("XDG_RUNTIME_DIR", env.root())).finish().with_code(3);
    // As a package ships it.
    fs::set_permissions(env.path("work/bin"), fs::Permissions::from_mode(0o755)).unwrap();
    let shipped = env.path("work/bin/penfold-sh");
    symlink("penfold", &shipped).unwrap();
    fs::set_permissions(env.path("work/bin"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::remove_file(home.join(".claude/settings.json")).unwrap();
    install();
    let settings = read(&home.join(".claude/settings.json")).unwrap();
    assert_eq!(settings["env"]["CLAUDE_CODE_SHELL_PREFIX"], json!(shipped.to_str().unwrap()));
    fs::set_permissions(env.path("work/bin"), fs::Permissions::from_mode(0o755)).unwrap();
}
