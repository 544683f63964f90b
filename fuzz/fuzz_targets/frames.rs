//! Streams and forms of the E2B API: any cuts give the same messages and parts. Protobuf: any bytes are a message or none. Addresses: only an id leads to a sandbox by its host name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_api_e2b::fuzzing::{read_address, read_form, read_protobuf, read_stream};

fn cut(cuts: &[u8], mut rest: &[u8], mut use_pieces: impl FnMut(&[&[u8]])) {
    let mut pieces = Vec::new();
    for &cut in cuts {
        let (piece, after) = rest.split_at(usize::from(cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    use_pieces(&pieces);
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (cuts, bytes) = input;
    let (stream, form) = (read_stream(&[bytes]), read_form("B", &[bytes]));
    cut(&cuts, bytes, |pieces| {
        assert_eq!(read_stream(pieces), stream);
        assert_eq!(read_form("B", pieces), form);
    });
    for path in ["/process.Process/Start", "/process.Process/StreamInput", "/filesystem.Filesystem/WatchDir"] {
        let _ = read_protobuf(path, bytes);
    }
    if let Some((id, _)) = read_address(bytes, None) {
        assert!(id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    let _ = read_address(b"localhost", Some(bytes));
});
