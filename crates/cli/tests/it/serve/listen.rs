//! Where the server listens, and whom it serves.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::process::Signal;

use super::{Server, TOKEN, token_file};
use crate::support::{Running, TestEnv, USER, is_root, penfold};

/// spec: 15.2
#[test]
fn a_unix_socket_is_private_and_goes_with_the_server() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let path = server.path().to_owned();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(server.get("/healthz", "").body, "ok\n");
    server.end();
    assert!(!path.try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 15.2
#[test]
fn a_process_of_another_user_is_not_served() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    std::fs::set_permissions(server.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "import os, socket; os.setgid({USER}); os.setuid({USER}); s = socket.socket(socket.AF_UNIX); \
         s.connect('{}'); s.sendall(b'GET /healthz HTTP/1.0\\r\\n\\r\\n'); print(len(s.recv(9)))",
        server.path().display()
    );
    let finished = Running::start(env.command("python3").args(["-c", &script])).finish();
    // Closed unread: an end, a reset, or no reader.
    let out = finished.out();
    assert!(
        out.trim() == "0"
            || ["ConnectionReset", "BrokenPipe"].iter().any(|error| finished.err().contains(error)),
        "{out} {}",
        finished.err()
    );
    assert_eq!(server.get("/healthz", "").status, 200);
    server.end();
}

/// spec: 15.2
#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let env = TestEnv::new();
    let first = Server::start(&env, &[]);
    let listen = format!("unix:{}", first.path().display());
    env.call(["serve", "--listen", &listen]).refused(1, "another process listens there");
    assert_eq!(first.get("/healthz", "").status, 200);
    first.running.signal(Signal::KILL);
    first.running.finish().with_code(137);
    let second = Server::start(&env, &[]);
    assert_eq!(second.get("/healthz", "").status, 200);
    second.end();
}

/// spec: 15.2
#[test]
fn another_file_is_never_replaced() {
    let env = TestEnv::new();
    let path = env.path("work/api.sock");
    let listen = format!("unix:{}", path.display());
    std::fs::write(&path, "precious").unwrap();
    env.call(["serve", "--listen", &listen]).refused(1, "a file that is no socket is there");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(env.path("work/elsewhere"), &path).unwrap();
    env.call(["serve", "--listen", &listen]).refused(1, "a file that is no socket is there");
    assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
}

/// spec: 15.2
#[test]
fn a_socket_that_was_replaced_stays() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let path = server.path().to_owned();
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    server.end();
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    drop(other);
}

#[test]
fn a_path_longer_than_a_socket_address_works() {
    let env = TestEnv::new();
    let dir = env.path("work").join("d".repeat(120));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("api.sock");
    let running = env.begin(["serve", "--listen", &format!("unix:{}", path.display())]);
    running.hear_error("listening", 1);
    let opened = std::fs::File::open(&dir).unwrap();
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/api.sock", opened.as_raw_fd())).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("ok\n"), "{text}");
    running.signal(Signal::TERM);
    running.finish().with_code(0);
    assert!(!path.try_exists().unwrap());
}

/// spec: 15.2.1
#[test]
fn a_port_needs_a_token() {
    let env = TestEnv::new();
    env.call(["serve", "--listen", "127.0.0.1:0"]).refused(2, "needs a token");
    env.call(["serve", "--listen", "0.0.0.0:0"]).refused(2, "needs a token");
    env.call(["serve", "--listen", "0.0.0.0:0", "--insecure-no-token"]).refused(2, "needs a token");
    env.call(["serve", "--listen", "[::]:0", "--insecure-no-token"]).refused(2, "needs a token");
    env.call(["serve", "--api", "cloudflare"]).refused(2, "`127.0.0.1:3000` needs a token");
    let server = Server::start_tcp(&env, &["--token-file", &token_file(&env)]);
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer 0123456789abcdef012\r\n",
        "authorization: Bearer 0123456789abcdef01234\r\n",
        "authorization: Basic 0123456789abcdef0123\r\n",
        "x-penfold-token: \r\n",
    ] {
        let answer = server.get("/metrics", headers);
        assert_eq!(answer.status, 401, "{headers}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(server.get("/metrics", &format!("authorization: Bearer {TOKEN}\r\n")).status, 200);
    assert_eq!(server.get("/metrics", &format!("x-penfold-token: {TOKEN}\r\n")).status, 200);
    assert_eq!(server.get(&format!("/t/{TOKEN}/metrics?x=1"), "").status, 200);
    assert_eq!(server.get(&format!("/t/{TOKEN}x/metrics"), "").status, 401);
    // On the Cloudflare API `Authorization` is no token.
    assert_eq!(server.get("/api/ping", &format!("authorization: Bearer {TOKEN}\r\n")).status, 401);
    for open in ["/healthz", "/readyz"] {
        assert_ne!(server.get(open, "").status, 401);
    }
    let said = server.end();
    assert!(!said.contains(TOKEN), "{said}");
}

/// spec: 15.2.1
#[test]
fn web_pages_of_other_sites_are_not_served_also_with_a_token() {
    let env = TestEnv::new();
    let tokens = token_file(&env);
    let server = Server::start_tcp(&env, &["--token-file", &tokens]);
    for path in ["/v1/sandboxes", "/api/session/list", "/metrics", "/docs"] {
        for (site, status) in [("cross-site", 403), ("same-site", 200), ("same-origin", 200), ("none", 200)] {
            for (path, header) in [
                (format!("/t/{TOKEN}{path}"), String::new()),
                (path.to_owned(), format!("x-penfold-token: {TOKEN}\r\n")),
            ] {
                let answer = server.get(&path, &format!("{header}sec-fetch-site: {site}\r\n"));
                assert_eq!(answer.status, status, "{path} {site}");
            }
        }
    }
    assert_eq!(server.get("/healthz", "sec-fetch-site: cross-site\r\n").status, 200);
    server.end();
}

#[test]
fn the_page_loads_its_own_parts_also_below_a_token() {
    let env = TestEnv::new();
    let server = Server::start_tcp(&env, &["--token-file", &token_file(&env)]);
    let page = server.get(&format!("/t/{TOKEN}/docs"), "").body;
    let script = server.get(&format!("/t/{TOKEN}/docs/page.js"), "").body;
    let parts = [("href=\"", &page), ("src=\"", &page), ("fetch(\"", &script)];
    let mut count = 0;
    for (before, text) in parts {
        for part in text.split(before).skip(1).map(|rest| rest.split('"').next().unwrap()) {
            // As a browser resolves it against the address of the page.
            let path = if part.starts_with('/') { part.to_owned() } else { format!("/t/{TOKEN}/{part}") };
            assert_eq!(server.get(&path, "").status, 200, "{path}");
            count += 1;
        }
    }
    assert!(count >= 4, "{count} parts");
    server.end();
}

/// spec: 15.2.1
#[test]
fn web_pages_are_not_served_without_a_token() {
    let env = TestEnv::new();
    let server = Server::start_tcp(&env, &["--insecure-no-token"]);
    assert_eq!(server.get("/metrics", "").status, 200);
    assert_eq!(server.get("/metrics", "origin: http://evil.example\r\n").status, 403);
    let rebound =
        server.say(b"GET /metrics HTTP/1.1\r\nhost: evil.example:3000\r\nconnection: close\r\n\r\n");
    assert!(rebound.starts_with("HTTP/1.1 403"), "{rebound}");
    server.end();
}

#[test]
fn wrong_words_are_one_sentence() {
    let env = TestEnv::new();
    for address in ["", "3000", "unix:", "example.org:80", "127.0.0.1:99999", "/run/x"] {
        env.call(["serve", "--listen", address]).refused(2, "`--listen`");
    }
    env.call(["serve", "--api", "grpc"]).refused(2, "`grpc` is not known");
    env.call(["serve", "--token-file", "none"]).refused(1, "cannot read the tokens in `none`");
    std::fs::write(env.path("work/short"), "abc").unwrap();
    env.call(["serve", "--token-file", "short"]).refused(2, "line 1: a token has 16 to 512 characters");
    env.call(["serve", "--listen", "192.0.2.1:1", "--token-file", &token_file(&env)])
        .refused(1, "cannot listen on `192.0.2.1:1`");
    env.call(["serve", "--max-connections", "0"]).refused(2, "`--max-connections`");
}

#[test]
fn several_addresses_are_served() {
    let env = TestEnv::new();
    let tokens = token_file(&env);
    let server = Server::start(&env, &["--listen", "127.0.0.1:0", "--token-file", &tokens]);
    let said = server.running.hear_error("listening", 2);
    let address = said.split("address=").nth(2).unwrap().split_whitespace().next().unwrap();
    std::net::TcpStream::connect(address).unwrap();
    assert_eq!(server.get("/metrics", "").status, 200, "a Unix socket needs no token");
    server.end();
}

/// spec: 15.3
#[test]
fn sockets_of_systemd_are_taken_over_and_it_is_told_when_the_server_is_ready() {
    let env = TestEnv::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let notify = std::os::unix::net::UnixDatagram::bind(env.path("work/notify")).unwrap();
    notify.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
    // The shell puts the socket where systemd would.
    let script =
        r#"exec 3<&"$1"; LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --root "$ROOT" serve --insecure-no-token"#;
    let inherited = rustix::io::fcntl_dupfd_cloexec(&listener, 10).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let mut command = env.command("bash");
    command.args(["-c", script]).arg(penfold()).arg(inherited.as_raw_fd().to_string());
    let running = Running::start(command.env("NOTIFY_SOCKET", env.path("work/notify")));
    drop(inherited);
    let hear = || {
        let mut buffer = [0_u8; 256];
        let length = notify.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(hear().trim(), "READY=1");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /readyz HTTP/1.0\r\nhost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("ready\n"), "{text}");
    running.signal(Signal::TERM);
    assert_eq!(hear().trim(), "STOPPING=1");
    running.finish().with_code(0);
}
