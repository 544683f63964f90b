//! Server-sent events as the client reads them: any cuts give the same events.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penfold_client::{EventParser, Received};

/// All events and comments of these pieces, and the length of an event that is not complete.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Received>, usize) {
    let mut parser = EventParser::default();
    let mut events = Vec::new();
    for piece in pieces {
        parser.feed(piece);
        events.extend(std::iter::from_fn(|| parser.take()));
    }
    (events, parser.length())
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (cuts, bytes) = input;
    let whole = read(std::iter::once(bytes));
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for cut in cuts {
        let (piece, after) = rest.split_at(usize::from(cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    assert_eq!(read(pieces.into_iter()), whole);
    assert_eq!(read(bytes.chunks(1)), whole);
    // A byte that is not UTF-8 becomes U+FFFD, which has three.
    assert!(whole.1 <= 3 * bytes.len());
});
