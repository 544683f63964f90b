//! The methods of the reference up to 0.12, each with the route that does the same over HTTP.

use axum::body::Body;
use axum::http::{Method as Verb, Request, header};
use penfold_state::time::now_ms;
use serde_json::{Map, Value as Json, json};

use super::pipe::PipeReader;
use super::source::Form;
use super::wire::Failure;
use crate::files::{READ_RAW, WRITE_STREAM};
use crate::runtime::METADATA;

/// A method.
#[derive(Debug)]
pub(crate) struct Method {
    name: &'static str,
    verb: Verb,
    /// The path of the route; `{}` is the value of a [`Parameter::Segment`].
    path: &'static str,
    parameters: &'static [Parameter],
    pub(crate) result: ResultOf,
}

/// Where an argument goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Parameter {
    /// A field of the body.
    Field(&'static str),
    /// The same, and the argument is bytes.
    Bytes(&'static str),
    /// The fields of this object are fields of the body.
    Fields,
    /// A segment of the path.
    Segment,
    /// A value of the query.
    Query(&'static str),
    /// The argument is a stream, which is the body.
    Stream,
    /// The argument has functions of the client, which hear the events of the answer.
    Listeners,
}

/// What a method makes of the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ResultOf {
    /// The object of the answer.
    Answer,
    /// The object of the answer after a change. It gets the arguments, too.
    Changed(fn(&mut Map<String, Json>, &[Json])),
    /// A field of the answer.
    FieldOf(&'static str),
    /// What this makes of the answer.
    Made(fn(&mut Map<String, Json>) -> Json),
    /// Always this.
    Constant(fn() -> Json),
    Nothing,
    /// The body of the answer as a stream of bytes.
    Stream,
    /// The same as the content of a file.
    File,
    /// Something that the client calls to get the body of the answer as a stream.
    Subscription(Form),
}

/// How a method of a session is found: by its name, and for some by its arguments.
pub(crate) type FindMethod = fn(&str, &[Json]) -> Result<&'static Method, Failure>;

use Parameter::{Field, Fields, Listeners, Query, Segment, Stream};

/// A method whose name, verb and path are these.
pub(super) const fn method(
    name: &'static str,
    verb: Verb,
    path: &'static str,
    parameters: &'static [Parameter],
) -> Method {
    Method { name, verb, path, parameters, result: ResultOf::Answer }
}

impl Method {
    pub(super) const fn gives(mut self, result: ResultOf) -> Method {
        self.result = result;
        self
    }
}

/// All methods.
static METHODS: &[Method] = &[
    method("commands.execute", Verb::POST, "/api/execute", &[Field("command"), Field("sessionId"), Fields]),
    method(
        "commands.executeStream",
        Verb::POST,
        "/api/execute/stream",
        &[Field("command"), Field("sessionId"), Fields],
    )
    .gives(ResultOf::Stream),
    method("files.readFile", Verb::POST, "/api/read", &[Field("path"), Field("sessionId"), Fields]),
    method(READ_BYTES, Verb::POST, READ_RAW, &[Field("path"), Field("sessionId"), Fields])
        .gives(ResultOf::File),
    method("files.readFileStream", Verb::POST, "/api/read/stream", &[Field("path"), Field("sessionId")])
        .gives(ResultOf::Stream),
    method(
        "files.writeFile",
        Verb::POST,
        "/api/write",
        &[Field("path"), Field("content"), Field("sessionId"), Fields],
    )
    .gives(ResultOf::Changed(|fields, arguments| {
        let length = arguments.get(1).and_then(Json::as_str).unwrap_or_default().len();
        fields.insert("bytesWritten".to_owned(), length.into());
    })),
    method("files.writeFileStream", Verb::POST, WRITE_STREAM, &[Query("path"), Stream, Query("sessionId")]),
    method("files.deleteFile", Verb::POST, "/api/delete", &[Field("path"), Field("sessionId")]),
    method(
        "files.renameFile",
        Verb::POST,
        "/api/rename",
        &[Field("oldPath"), Field("newPath"), Field("sessionId")],
    )
    .gives(ResultOf::Changed(|fields, _| {
        let old = fields.get("path").cloned().unwrap_or_default();
        fields.insert("oldPath".to_owned(), old);
    })),
    method(
        "files.moveFile",
        Verb::POST,
        "/api/move",
        &[Field("sourcePath"), Field("destinationPath"), Field("sessionId")],
    ),
    method("files.mkdir", Verb::POST, "/api/mkdir", &[Field("path"), Field("sessionId"), Fields]),
    method(
        "files.listFiles",
        Verb::POST,
        "/api/list-files",
        &[Field("path"), Field("sessionId"), Field("options")],
    ),
    method("files.exists", Verb::POST, "/api/exists", &[Field("path"), Field("sessionId")]),
    method(
        "processes.startProcess",
        Verb::POST,
        "/api/process/start",
        &[Field("command"), Field("sessionId"), Fields],
    ),
    method("processes.listProcesses", Verb::GET, "/api/process/list", &[]),
    method("processes.getProcess", Verb::GET, "/api/process/{}", &[Segment]),
    method("processes.killProcess", Verb::DELETE, "/api/process/{}", &[Segment]),
    method("processes.killAllProcesses", Verb::DELETE, "/api/process/kill-all", &[]),
    method("processes.getProcessLogs", Verb::GET, "/api/process/{}/logs", &[Segment]),
    method("processes.streamProcessLogs", Verb::GET, "/api/process/{}/stream", &[Segment])
        .gives(ResultOf::Stream),
    method("ports.watchPort", Verb::POST, "/api/port-watch", &[Fields]).gives(ResultOf::Stream),
    method("git.checkout", Verb::POST, "/api/git/checkout", &[Field("repoUrl"), Field("sessionId"), Fields]),
    method("utils.ping", Verb::GET, "/api/ping", &[]).gives(ResultOf::FieldOf("status")),
    method("utils.getVersion", Verb::GET, "/api/version", &[]).gives(ResultOf::FieldOf("version")),
    // The reference has no commands to list, and its route always fails.
    method("utils.getCommands", Verb::GET, "/api/ping", &[]).gives(ResultOf::Constant(|| json!([]))),
    // The first call of a client from 0.13 on.
    method("utils.getRuntimeMetadata", Verb::GET, METADATA, &[]),
    method("utils.createSession", Verb::POST, "/api/session/create", &[Fields]).gives(ResultOf::Changed(
        |fields, _| {
            let id = fields.remove("sessionId").unwrap_or_default();
            let message = format!("Session {} created", id.as_str().unwrap_or_default());
            fields.remove("data");
            fields.extend([
                ("id".to_owned(), id),
                ("message".to_owned(), message.into()),
                ("containerPlacementId".to_owned(), Json::Null),
            ]);
        },
    )),
    method("utils.deleteSession", Verb::POST, "/api/session/delete", &[Field("sessionId")]),
    method("utils.listSessions", Verb::GET, "/api/session/list", &[]).gives(ResultOf::Changed(
        |fields, _| {
            let sessions = fields.remove("data").unwrap_or_default();
            *fields = Map::from_iter([("sessions".to_owned(), sessions)]);
        },
    )),
    method("interpreter.createCodeContext", Verb::POST, "/api/contexts", &[Fields]).gives(ResultOf::Made(
        |fields| {
            let id = fields.remove("contextId").unwrap_or_default();
            dated_context([("id".to_owned(), id)].into_iter().chain(std::mem::take(fields)).collect())
        },
    )),
    method(
        "interpreter.streamCode",
        Verb::POST,
        "/api/execute/code",
        &[Field("context_id"), Field("code"), Field("language")],
    )
    .gives(ResultOf::Stream),
    method("interpreter.listCodeContexts", Verb::GET, "/api/contexts", &[]).gives(ResultOf::Made(|fields| {
        let contexts = fields.get_mut("contexts").and_then(Json::as_array_mut).map(std::mem::take);
        contexts.unwrap_or_default().into_iter().map(dated_context).collect()
    })),
    method("interpreter.deleteCodeContext", Verb::DELETE, "/api/contexts/{}", &[Segment])
        .gives(ResultOf::Nothing),
    method(
        "interpreter.runCodeStream",
        Verb::POST,
        "/api/execute/code",
        &[Field("context_id"), Field("code"), Field("language"), Listeners, Field("timeout_ms")],
    )
    .gives(ResultOf::Stream),
    method(
        "backup.createArchive",
        Verb::POST,
        "/api/backup/create",
        &[Field("dir"), Field("archivePath"), Field("sessionId"), Fields],
    ),
    method(
        "backup.restoreArchive",
        Verb::POST,
        "/api/backup/restore",
        &[Field("dir"), Field("archivePath"), Field("sessionId")],
    ),
    method("backup.uploadParts", Verb::POST, "/api/backup/upload-parts", &[Fields]),
    method("watch.watch", Verb::POST, "/api/watch", &[Fields]).gives(ResultOf::Stream),
    method("watch.checkChanges", Verb::POST, "/api/watch/check", &[Fields]),
    method("tunnels.runQuickTunnel", Verb::POST, "/rpc/tunnels", &[]),
    method("tunnels.runNamedTunnel", Verb::POST, "/rpc/tunnels", &[]),
    method("tunnels.destroyTunnel", Verb::POST, "/rpc/tunnels", &[]),
    method("tunnels.listTunnels", Verb::POST, "/rpc/tunnels", &[]),
    method("tunnels.ensureTunnelRun", Verb::POST, "/rpc/tunnels", &[]),
    method("tunnels.stopTunnelRun", Verb::POST, "/rpc/tunnels", &[]),
];

/// The fields of a context that are dates.
const DATES: [&str; 2] = ["createdAt", "lastUsed"];
/// What `files.readFile` is with the encoding `none`.
pub(super) const READ_BYTES: &str = "files.readFile as bytes";

/// Makes a context as clients of RPC expect it.
fn dated_context(mut context: Json) -> Json {
    let created = context["createdAt"].as_u64().unwrap_or_else(now_ms);
    if let Some(fields) = context.as_object_mut() {
        fields.retain(|name, _| ["id", "language", "cwd"].contains(&name.as_str()));
        for name in DATES {
            fields.insert(name.to_owned(), created.into());
        }
    }
    context
}

impl Method {
    /// Finds the method of a call.
    ///
    /// # Errors
    /// When there is none, as JavaScript says it.
    pub(crate) fn find(name: &str, arguments: &[Json]) -> Result<&'static Method, Failure> {
        let encoding = arguments.get(2).and_then(|options| options.get("encoding"));
        let is_raw = name == "files.readFile" && encoding.is_some_and(|encoding| encoding == "none");
        let wanted = if is_raw { READ_BYTES } else { name };
        Method::among(METHODS, wanted).ok_or_else(|| {
            let last = name.rsplit('.').next().unwrap_or_default();
            Failure::new(&format!("'{last}' is not a function."))
        })
    }

    /// Returns the method of this name.
    pub(super) fn among(methods: &'static [Method], name: &str) -> Option<&'static Method> {
        methods.iter().find(|method| method.name == name)
    }

    /// Tells whether the result is a subscription.
    pub(crate) fn is_subscription(&self) -> bool {
        matches!(self.result, ResultOf::Subscription(_))
    }

    /// The fields of the result that are dates, in milliseconds.
    pub(crate) fn dates(&self) -> &'static [&'static str] {
        if self.path == "/api/contexts" { &DATES } else { &[] }
    }

    /// Tells whether the events of the answer go to functions of the client.
    pub(crate) fn has_listeners(&self) -> bool {
        self.parameters.iter().any(|parameter| matches!(parameter, Listeners))
    }

    /// Tells whether the argument at this place is bytes.
    pub(crate) fn takes_bytes(&self, at: usize) -> bool {
        matches!(self.parameters.get(at), Some(Parameter::Bytes(_)))
    }

    /// Tells whether the method reads a stream of the client.
    pub(crate) fn reads_stream(&self) -> bool {
        self.parameters.iter().any(|parameter| matches!(parameter, Stream))
    }

    /// Makes the request that is the call.
    ///
    /// # Errors
    /// When an argument has the wrong type.
    pub(crate) fn request(
        &self,
        arguments: &[Json],
        stream: Option<PipeReader>,
    ) -> Result<Request<Body>, Failure> {
        let mut fields = Map::new();
        let mut path = self.path.to_owned();
        let mut query = Vec::new();
        for (parameter, argument) in self.parameters.iter().zip(arguments) {
            match (parameter, argument) {
                (Field(name) | Parameter::Bytes(name), value) if !value.is_null() => {
                    fields.insert((*name).to_owned(), value.clone());
                }
                (Fields, Json::Object(given)) => {
                    fields.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
                }
                (Segment, value) => path = path.replacen("{}", &encode_segment(text_of(value)?), 1),
                (Query(name), value) if !value.is_null() => {
                    query.push(format!("{name}={}", encode_segment(text_of(value)?)));
                }
                (Fields, value) if !value.is_null() => {
                    return Err(Failure::new(&format!("{}: options are an object", self.name)));
                }
                (Field(_) | Parameter::Bytes(_) | Fields | Query(_) | Stream | Listeners, _) => {}
            }
        }
        if !query.is_empty() {
            path = format!("{path}?{}", query.join("&"));
        }
        let body = match stream.filter(|_| self.reads_stream()) {
            Some(stream) => Body::new(stream),
            None if self.verb == Verb::POST => Body::from(Json::Object(fields).to_string()),
            None => Body::empty(),
        };
        let request = Request::builder().method(self.verb.clone()).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        request.map_err(|error| Failure::new(&error))
    }
}

fn text_of(value: &Json) -> Result<&str, Failure> {
    value.as_str().ok_or_else(|| Failure::new("an argument that must be text is none"))
}

/// Writes text as a segment of a path or a value of a query.
fn encode_segment(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => char::from(byte).to_string(),
        // A segment of dots would be another path.
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::rpc::pipe::open_pipe;

    async fn request(name: &str, arguments: Json, stream: Option<PipeReader>) -> (String, String) {
        let arguments = arguments.as_array().unwrap();
        let request = Method::find(name, arguments).unwrap().request(arguments, stream).unwrap();
        let line = format!("{} {}", request.method(), request.uri());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        (line, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_call_is_a_request() {
        for (name, arguments, line, body) in [
            (
                "commands.execute",
                json!(["ls", "s", { "cwd": "/", "timeoutMs": 5 }]),
                "POST /api/execute",
                json!({ "command": "ls", "sessionId": "s", "cwd": "/", "timeoutMs": 5 }),
            ),
            (
                "files.listFiles",
                json!(["/", "s", { "recursive": true }]),
                "POST /api/list-files",
                json!({ "path": "/", "sessionId": "s", "options": { "recursive": true } }),
            ),
            (
                "files.readFile",
                json!(["/a", "s", { "encoding": "none" }]),
                "POST /rpc/read",
                json!({ "path": "/a", "sessionId": "s", "encoding": "none" }),
            ),
            (
                "files.readFile",
                json!(["/a", "s"]),
                "POST /api/read",
                json!({ "path": "/a", "sessionId": "s" }),
            ),
            ("ports.watchPort", json!([{ "port": 80 }]), "POST /api/port-watch", json!({ "port": 80 })),
            (
                "interpreter.runCodeStream",
                json!(["c", "1", null, { "onStdout": null }, 5]),
                "POST /api/execute/code",
                json!({ "context_id": "c", "code": "1", "timeout_ms": 5 }),
            ),
            ("utils.deleteSession", json!(["s"]), "POST /api/session/delete", json!({ "sessionId": "s" })),
            ("files.exists", json!(["/a", null]), "POST /api/exists", json!({ "path": "/a" })),
        ] {
            let (seen, sent) = request(name, arguments, None).await;
            assert_eq!((seen.as_str(), serde_json::from_str::<Json>(&sent).unwrap()), (line, body), "{name}");
        }
    }

    #[tokio::test]
    async fn an_id_is_one_segment() {
        let (line, body) = request("processes.killProcess", json!(["../a b?"]), None).await;
        assert_eq!((line.as_str(), body.as_str()), ("DELETE /api/process/%2E%2E%2Fa%20b%3F", ""));
    }

    #[test]
    fn a_stream_is_a_body() {
        let arguments = [json!("/a&b"), Json::Null, json!("s")];
        let method = Method::find("files.writeFileStream", &arguments).unwrap();
        assert!(method.reads_stream());
        let (_, reader) = open_pipe();
        let request = method.request(&arguments, Some(reader)).unwrap();
        assert_eq!(request.uri(), "/rpc/write-stream?path=%2Fa%26b&sessionId=s");
    }

    #[test]
    fn wrong_calls_fail() {
        assert!(Method::find("commands", &[]).is_err());
        assert!(Method::find("constructor", &[]).is_err());
        let one = [json!(1)];
        assert!(Method::find("processes.getProcess", &one).unwrap().request(&one, None).is_err());
        assert!(Method::find("ports.watchPort", &one).unwrap().request(&one, None).is_err());
    }

    #[test]
    fn a_name_is_there_once() {
        let mut names: Vec<_> = METHODS.iter().map(|method| method.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METHODS.len());
    }
}
