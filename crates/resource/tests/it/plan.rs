//! From a request to a plan.

use penfold_resource::request::Request;
use penfold_resource::{PlannedResource, ResourcePresence};

use crate::support::Sandbox;

#[track_caller]
fn refused(request: &str, message: &str) {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("exists")).unwrap();
    std::fs::write(sandbox.path("file"), "").unwrap();
    let error = sandbox.try_plan(request).unwrap_err().to_string();
    let dir = sandbox.dir.path().to_str().unwrap();
    assert_eq!(error, message.replace("DIR", dir));
}

#[test]
fn mistakes_have_one_sentence_each() {
    refused(
        r#"{"workspace":{"path":"DIR/exists"}}"#,
        "the workspace `DIR/exists` exists; add `keep = true` to use it, or name a directory that does not exist",
    );
    refused(r#"{"workspace":{"path":"w"}}"#, "the path `w` is not absolute; write it from the root");
    refused(r#"{"workspace":{"path":"DIR/file"}}"#, "the workspace `DIR/file` is no directory");
    refused(
        r#"{"workspace":{"path":"DIR/a/b"}}"#,
        "the parent directory of `DIR/a/b` does not exist; make it first",
    );
    refused(
        r#"{"workspace":{"path":"DIR/w"},"own":["path=DIR/w"]}"#,
        "the path `DIR/w` is given twice; remove one of the two",
    );
    refused(
        r#"{"mounts":[{"type":"tmpfs","target":"DIR/t"},{"type":"tmpfs","target":"DIR/t"}]}"#,
        "the path `DIR/t` is given twice; remove one of the two",
    );
    refused(r#"{"own":["link=a","link=a"]}"#, "link `a` is given twice; remove one of the two");
    refused(
        r#"{"mounts":[{"type":"bind","source":"DIR/none","target":"DIR/t"}]}"#,
        "the source `DIR/none` does not exist",
    );
    refused(
        r#"{"mounts":[{"type":"bind","source":"DIR/file","target":"DIR/exists"}]}"#,
        "the file `DIR/file` can only be mounted on a file that exists",
    );
    refused(
        r#"{"mounts":[{"type":"overlay","lower":["DIR/exists"],"upper":"DIR/exists","target":"DIR/t"}]}"#,
        "an overlay needs both `upper` and `work`, or neither",
    );
    refused(
        r#"{"network":{"gateway":"10.0.0.1"}}"#,
        "`gateway` and `peer_address` need an `address` of the namespace's end",
    );
    refused(
        r#"{"network":{"address":"10.0.0.2/30","gateway":"10.0.0.9"}}"#,
        "the gateway 10.0.0.9 is not another address in the network of `address`",
    );
}

#[test]
fn a_socket_path_leaves_room_for_a_name() {
    let long = "x".repeat(70);
    let sandbox = Sandbox::new();
    let error = sandbox.try_plan(&format!(r#"{{"sockets":{{"path":"DIR/{long}"}}}}"#)).unwrap_err();
    assert!(error.to_string().contains("is too long for sockets"), "{error}");
}

#[test]
fn a_plan_reads_back_and_makes_nothing() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("lower")).unwrap();
    let request = r#"{"workspace":{"path":"DIR/w"},"sockets":{},
        "network":{"address":"10.0.0.2/30","gateway":"10.0.0.1","tap":{"user":7}},
        "mounts":[{"type":"overlay","lower":["DIR/lower"],"target":"DIR/w"},{"type":"bind","source":"DIR/lower","target":"DIR/b"}],
        "own":["path=/x","netns=n","link=l","mount=/m","loop=/b.img","nft=inet:n"]}"#;
    let planned = sandbox.try_plan(request).unwrap();
    let text = serde_json::to_string(&planned).unwrap();
    assert_eq!(serde_json::from_str::<Vec<PlannedResource>>(&text).unwrap(), planned);
    let kinds: Vec<String> = planned.iter().map(PlannedResource::describe).collect();
    let id = &sandbox.owner.id;
    assert!(kinds.contains(&format!("network namespace `penfold-{id}`")), "{kinds:?}");
    assert!(kinds.contains(&format!("link `pf-{id}`")), "{kinds:?}");
    assert_eq!(std::fs::read_dir(sandbox.dir.path()).unwrap().count(), 1);
    for planned in planned.iter().filter(|planned| matches!(planned, PlannedResource::Directory(_))) {
        assert_eq!(planned.probe(&sandbox.owner).unwrap(), ResourcePresence::Absent);
    }
}

#[test]
fn an_empty_request_plans_nothing() {
    let request: Request = serde_json::from_str("{}").unwrap();
    assert!(request.is_empty());
    let sandbox = Sandbox::new();
    assert_eq!(request.plan(&sandbox.owner, &sandbox.place()).unwrap(), []);
    assert!(serde_json::from_str::<Request>(r#"{"workspaces":{}}"#).is_err());
}
