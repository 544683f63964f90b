//! The methods of the reference from 0.13 on, each with its route. Most of their arguments name no session.
//!
//! A client of 0.13 activates its control session before it calls anything else: from then on, it has these methods and no others.

use axum::http::Method as Verb;
use serde_json::{Map, Value as Json};

use super::methods::Parameter::{Bytes, Field, Fields, Query, Segment, Stream};
use super::methods::{Method, READ_BYTES, ResultOf, method};
use super::source::Form;
use super::wire::Failure;
use crate::files::{READ_RAW, WRITE_STREAM};
use crate::ports::OPEN_WATCH;
use crate::runtime::{ACTIVATE, METADATA};

/// The method with which a client gets the methods of this file.
pub(crate) const ACTIVATION: &str = "utils.activateControlSession";

/// All methods.
static METHODS: &[Method] = &[
    method(ACTIVATION, Verb::POST, ACTIVATE, &[Field("runtimeIncarnationID")]),
    method("utils.getRuntimeMetadata", Verb::GET, METADATA, &[]),
    method("utils.ping", Verb::GET, "/api/ping", &[]).gives(ResultOf::FieldOf("status")),
    method("files.readFile", Verb::POST, "/api/read", &[Field("path"), Fields]),
    method(READ_BYTES, Verb::POST, READ_RAW, &[Field("path"), Fields]).gives(ResultOf::File),
    method("files.readFileStream", Verb::POST, "/api/read/stream", &[Field("path")]).gives(ResultOf::Stream),
    method("files.writeFile", Verb::POST, "/api/write", &[Field("path"), Field("content"), Fields]),
    method("files.writeFileStream", Verb::POST, WRITE_STREAM, &[Query("path"), Stream]),
    method("files.deleteFile", Verb::POST, "/api/delete", &[Field("path")]),
    method("files.renameFile", Verb::POST, "/api/rename", &[Field("oldPath"), Field("newPath")]),
    method("files.moveFile", Verb::POST, "/api/move", &[Field("sourcePath"), Field("destinationPath")]),
    method("files.mkdir", Verb::POST, "/api/mkdir", &[Field("path"), Fields]),
    method("files.listFiles", Verb::POST, "/api/list-files", &[Field("path"), Field("options")]),
    method("files.exists", Verb::POST, "/api/exists", &[Field("path")]),
    method("processes.start", Verb::POST, "/rpc/processes", &[Field("command"), Fields])
        .gives(ResultOf::FieldOf("process")),
    method("processes.get", Verb::GET, "/rpc/process/{}", &[Segment]).gives(ResultOf::FieldOf("process")),
    method("processes.list", Verb::GET, "/rpc/processes", &[]).gives(ResultOf::FieldOf("processes")),
    method("processes.openLogs", Verb::POST, "/rpc/process/{}/events", &[Segment, Fields])
        .gives(ResultOf::Subscription(Form::Events)),
    method("processes.kill", Verb::POST, "/rpc/process/{}/kill", &[Segment, Field("signal")])
        .gives(ResultOf::Nothing),
    method("processes.hasActive", Verb::GET, "/rpc/processes/active", &[]).gives(ResultOf::FieldOf("active")),
    method("terminals.create", Verb::POST, "/rpc/terminals", &[Fields]).gives(ResultOf::FieldOf("terminal")),
    method("terminals.get", Verb::GET, "/rpc/terminal/{}", &[Segment]).gives(ResultOf::FieldOf("terminal")),
    method("terminals.list", Verb::GET, "/rpc/terminals", &[]).gives(ResultOf::FieldOf("terminals")),
    method("terminals.output", Verb::POST, "/rpc/terminal/{}/output", &[Segment, Fields])
        .gives(ResultOf::Subscription(Form::Events)),
    method("terminals.write", Verb::POST, "/rpc/terminal/{}/write", &[Segment, Bytes("data")])
        .gives(ResultOf::Nothing),
    method(
        "terminals.resize",
        Verb::POST,
        "/rpc/terminal/{}/resize",
        &[Segment, Field("cols"), Field("rows")],
    )
    .gives(ResultOf::Nothing),
    method("terminals.interrupt", Verb::POST, "/rpc/terminal/{}/interrupt", &[Segment])
        .gives(ResultOf::Nothing),
    method("terminals.terminate", Verb::POST, "/rpc/terminal/{}/terminate", &[Segment])
        .gives(ResultOf::Nothing),
    method("terminals.hasActive", Verb::GET, "/rpc/terminals/active", &[]).gives(ResultOf::FieldOf("active")),
    method("ports.openWatch", Verb::POST, OPEN_WATCH, &[Field("port"), Fields])
        .gives(ResultOf::Subscription(Form::Events)),
    method("watch.watch", Verb::POST, "/api/watch", &[Fields]).gives(ResultOf::Subscription(Form::Bytes)),
    method("watch.checkChanges", Verb::POST, "/api/watch/check", &[Fields]),
    method(
        "backup.createArchive",
        Verb::POST,
        "/api/backup/create",
        &[Field("dir"), Field("archivePath"), Fields],
    ),
    method("backup.restoreArchive", Verb::POST, "/api/backup/restore", &[Field("dir"), Field("archivePath")]),
    method("backup.extractArchive", Verb::POST, "/api/backup/restore", &[Field("dir"), Field("archivePath")])
        .gives(ResultOf::Nothing),
    method("backup.prepareRestore", Verb::POST, "/rpc/backup/prepare", &[Fields]),
    method("backup.cleanupArchive", Verb::POST, "/rpc/backup/cleanup", &[Field("archivePath")])
        .gives(ResultOf::Nothing),
    method("backup.uploadArchive", Verb::POST, "/api/backup/upload-parts", &[Fields]),
    method("backup.uploadParts", Verb::POST, "/api/backup/upload-parts", &[Fields]),
];

/// Finds the method of a call.
///
/// # Errors
/// When penfold does not serve it.
pub(crate) fn find_next_method(name: &str, arguments: &[Json]) -> Result<&'static Method, Failure> {
    let encoding = arguments.get(1).and_then(|options| options.get("encoding"));
    let is_raw = name == "files.readFile" && encoding.is_some_and(|encoding| encoding == "none");
    Method::among(METHODS, if is_raw { READ_BYTES } else { name }).ok_or_else(|| unserved(name))
}

fn unserved(name: &str) -> Failure {
    let mut failure = Failure::new(&format!("penfold does not serve the method `{name}`"));
    failure.properties.insert("code".to_owned(), "UNKNOWN_ERROR".into());
    failure.properties.insert("details".to_owned(), Json::Object(Map::new()));
    failure
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde_json::json;

    use super::*;

    async fn request(name: &str, arguments: Json) -> (String, Json) {
        let arguments = arguments.as_array().unwrap();
        let request = find_next_method(name, arguments).unwrap().request(arguments, None).unwrap();
        let line = format!("{} {}", request.method(), request.uri());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        (line, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn a_call_is_a_request() {
        for (name, arguments, line, body) in [
            (
                "files.listFiles",
                json!(["/", { "recursive": true }]),
                "POST /api/list-files",
                json!({ "path": "/", "options": { "recursive": true } }),
            ),
            (
                "files.readFile",
                json!(["/a", { "encoding": "none" }]),
                "POST /rpc/read",
                json!({ "path": "/a", "encoding": "none" }),
            ),
            ("files.exists", json!(["/a", {}]), "POST /api/exists", json!({ "path": "/a" })),
            ("utils.getRuntimeMetadata", json!([]), "GET /rpc/runtime", Json::Null),
        ] {
            assert_eq!(request(name, arguments).await, (line.to_owned(), body), "{name}");
        }
    }

    #[test]
    fn what_is_not_served_is_refused_with_its_name() {
        for name in ["commands.execute", "mounts.isMountpoint", "tunnels.ensureTunnelRun", "x"] {
            let failure = find_next_method(name, &[]).unwrap_err();
            assert!(failure.message.contains(name), "{failure:?}");
        }
    }
}
