//! Dialects are values: the server serves any list of them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::get;
use penfold_server::{Access, Address, Config, Dialect, Limits, Listener, TokenPlace, Tokens};
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef";
/// Takes tokens from `Authorization`.
const ONE: Dialect = Dialect {
    name: "one",
    owns: |path| path.starts_with("/one"),
    claims: None,
    token_place: TokenPlace::Bearer,
    reads: |method, _| method.is_safe(),
    ends: |_, _| false,
    refusal: |refusal| (refusal.status, format!("one refuses: {}", refusal.kind)).into_response(),
    routes: |app| Router::new().route("/one", get(async || "of one")).with_state(app),
    is_served: true,
};
/// Leaves `Authorization` to its routes, and owns the rest.
const OTHER: Dialect = Dialect {
    name: "other",
    owns: |path| path != "/nobody",
    claims: None,
    token_place: TokenPlace::Nowhere,
    reads: |method, _| method.is_safe(),
    ends: |_, _| false,
    refusal: |refusal| (refusal.status, format!("other refuses: {}", refusal.kind)).into_response(),
    routes: |_| Router::new().fallback(async || (StatusCode::IM_A_TEAPOT, "of other")),
    is_served: true,
};

/// Serves these dialects on a socket in the directory, until the process ends.
fn serve(dialects: Vec<Dialect>) -> TempDir {
    let dir = TempDir::new().unwrap();
    let config = Config {
        templates: std::collections::BTreeMap::new(),
        state_root: dir.path().join("root"),
        temporary: dir.path().to_owned(),
        program: PathBuf::from("/nowhere/penfold"),
        environment: Vec::new(),
        tokens: Tokens::parse(TOKEN.as_bytes()).unwrap(),
        token_file: None,
        has_terminal: false,
        limits: Limits::default(),
        drain: Duration::ZERO,
    };
    std::fs::create_dir(&config.state_root).unwrap();
    let access = Access { tokens: &config.tokens, insecure_no_token: false };
    // Connections wait in the backlog until the server accepts them.
    let listener = Listener::open(&Address::Unix(dir.path().join("api.sock")), access).unwrap();
    std::thread::spawn(move || penfold_server::serve(config, dialects, vec![listener], &mut |_| ()));
    dir
}

/// Asks for a path with this bearer, and returns the status and the rest of the answer.
#[track_caller]
fn ask(dir: &TempDir, path: &str, bearer: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(dir.path().join("api.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: a\r\nauthorization: Bearer {bearer}\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    (said.split(' ').nth(1).unwrap().parse().unwrap(), said)
}

#[test]
fn each_path_has_the_routes_and_the_refusals_of_its_dialect() {
    let dir = serve(vec![ONE, OTHER]);
    for (path, bearer, status, text) in [
        ("/one", TOKEN, 200, "of one"),
        ("/one", "wrong", 401, "one refuses: unauthorized"),
        // Not a token of the server here.
        ("/x", "wrong", 418, "of other"),
        ("/t/wrong/x", "", 401, "other refuses: unauthorized"),
        ("/t/wrong/one", "", 401, "one refuses: unauthorized"),
        ("/t/wrong/nobody", "", 401, "a valid token is needed"),
    ] {
        let (answered, said) = ask(&dir, path, bearer);
        assert!(answered == status && said.contains(text), "{path}: {said}");
    }
    let (_, metrics) = ask(&dir, "/metrics", "");
    for line in [
        r#"penfold_http_requests_total{api="one",method="GET",status="200"} 1"#,
        r#"penfold_http_requests_total{api="other",method="GET",status="418"} 1"#,
        r#"penfold_http_requests_total{api="none",method="GET",status="401"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn a_dialect_that_is_not_served_has_no_routes_and_keeps_its_refusals() {
    let dir = serve(vec![Dialect { is_served: false, ..ONE }, OTHER]);
    let (status, said) = ask(&dir, "/one", TOKEN);
    assert!(status == 418 && said.contains("of other"), "{said}");
    let (status, said) = ask(&dir, "/one", "wrong");
    assert!(status == 401 && said.contains("one refuses"), "{said}");
}
