//! A client of `penfold mcp`, spelled out: a line of JSON for each message.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Finished, Process, Running, TestEnv, wait_until};

/// A server with its client.
pub struct Client {
    server: Running,
    next: u64,
}

impl Client {
    /// Starts `penfold mcp` with these flags, and shakes hands.
    #[track_caller]
    pub fn start(env: &TestEnv, flags: &[&str]) -> Client {
        let mut client = Client::silent(env, flags);
        let answer = client.initialize("2025-11-25");
        assert_eq!(answer["result"]["serverInfo"]["name"], "penfold", "{answer}");
        client
    }

    /// Starts `penfold mcp`, and says nothing.
    #[track_caller]
    pub fn silent(env: &TestEnv, flags: &[&str]) -> Client {
        let mut command = env.penfold(["mcp"]);
        Client { server: Running::start(command.args(flags).stdin(Stdio::piped())), next: 0 }
    }

    /// Starts `penfold mcp` with this standard output, which nobody reads as answers.
    #[track_caller]
    pub fn unread(env: &TestEnv, output: Stdio) -> Client {
        let mut command = env.penfold(["mcp"]);
        let server = Running::spawn(command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped()));
        Client { server, next: 0 }
    }

    /// The first request, and the notification that follows its answer.
    #[track_caller]
    pub fn initialize(&mut self, version: &str) -> Value {
        let id = self.greet(version);
        let answer = self.answer(id);
        self.say_initialized();
        answer
    }

    /// Sends the first request; returns its id.
    pub fn greet(&mut self, version: &str) -> u64 {
        let info = json!({ "name": "test", "version": "1" });
        let hello = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": info });
        self.ask("initialize", &hello)
    }

    /// Sends the notification that the client is ready.
    pub fn say_initialized(&mut self) {
        self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Value) {
        self.server.say(&format!("{message}\n"));
    }

    /// Sends a line.
    pub fn say_line(&mut self, line: &str) {
        self.server.say(line);
    }

    /// Sends a request; returns its id.
    pub fn ask(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }));
        self.next
    }

    /// Sends a call of a tool; returns its id.
    pub fn ask_tool(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.ask("tools/call", &json!({ "name": tool, "arguments": arguments }))
    }

    /// Waits for an answer. All that the server has written so far is messages.
    #[track_caller]
    pub fn answer(&self, id: u64) -> Value {
        let mut found = Value::Null;
        wait_until(&format!("answer {id}"), || {
            let heard = self.server.heard();
            let whole = heard.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let messages = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
            let answer = messages
                .inspect(|message| assert_eq!(message["jsonrpc"], "2.0"))
                .find(|message| message["id"] == id);
            found = answer.unwrap_or_default();
            !found.is_null()
        });
        found
    }

    /// All that the server has written.
    pub fn heard(&self) -> String {
        self.server.heard()
    }

    /// Whether the request was answered.
    pub fn has_answered(&self, id: u64) -> bool {
        self.server.heard().contains(&format!("\"id\":{id},"))
            || self.server.heard().contains(&format!("\"id\":{id}}}"))
    }

    #[track_caller]
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.ask(method, params);
        self.answer(id)
    }

    /// Calls a tool: whether it failed, its text, its data.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: &Value) -> (bool, String, Value) {
        let id = self.ask_tool(tool, arguments);
        self.result(id)
    }

    /// Waits for the result of a call.
    #[track_caller]
    pub fn result(&self, id: u64) -> (bool, String, Value) {
        let answer = self.answer(id);
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(result["structuredContent"].is_object(), "{answer}");
        (result["isError"] == true, text.to_owned(), result["structuredContent"].clone())
    }

    /// Calls a tool that must do what it should.
    #[track_caller]
    pub fn done(&mut self, tool: &str, arguments: &Value) -> Value {
        let (failed, text, data) = self.call(tool, arguments);
        assert!(!failed, "{tool}: {text}");
        data
    }

    /// The sandboxes that the tool `ps` lists, without orphans that this server did not start: they may be those of other tests.
    #[track_caller]
    pub fn listed(&mut self) -> Vec<Value> {
        let mut listed = self.done("ps", &json!({}))["sandboxes"].as_array().cloned().unwrap();
        listed.retain(|one| one["status"] != "orphaned" || one["started_here"] == true);
        listed
    }

    /// Calls a tool that must fail with this in its first sentence.
    #[track_caller]
    pub fn refused(&mut self, tool: &str, arguments: &Value, part: &str) -> Value {
        let (failed, text, data) = self.call(tool, arguments);
        assert!(failed && text.lines().next().unwrap().contains(part), "{tool}: no `{part}` in: {text}");
        assert_eq!(data["error"].as_str(), text.lines().next(), "{data}");
        data
    }

    /// The process of the server.
    pub fn process(&self) -> &Process {
        self.server.process()
    }

    /// Ends standard input, and waits for the end of the server.
    #[track_caller]
    pub fn close(mut self) -> Finished {
        self.server.hang_up();
        self.server.finish()
    }
}
