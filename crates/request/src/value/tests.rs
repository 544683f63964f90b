//! Every parser: what it takes, what it refuses, that it never panics, and that what is shown reads back.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn millis(text: &str) -> u128 {
    duration(text).unwrap_or_else(|error| panic!("{error}")).as_millis()
}

#[test]
fn durations_of_the_contract_are_read() {
    for (text, expected) in [
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("0.3", 300),
        (".5", 500),
        ("5.", 5_000),
        ("1.5h", 5_400_000),
        ("1h0.5m", 3_630_000),
        ("0", 0),
        ("0s", 0),
        ("00012", 12_000),
        ("36500d", 3_153_600_000_000),
    ] {
        assert_eq!(millis(text), expected, "{text}");
    }
}

#[test]
fn a_duration_too_fine_for_the_clock_is_not_zero() {
    assert_eq!(duration("0.0000000001"), Ok(Duration::from_nanos(1)));
    assert_eq!(duration("0.0000000000000000000000001"), Ok(Duration::from_nanos(1)));
    assert_eq!(duration("0.0000000000000000000000000"), Ok(Duration::ZERO));
}

#[test]
fn what_is_no_duration_is_refused_with_the_reason() {
    let refused = |text: &str| duration(text).map_err(|error| error.problem);
    for text in [
        "", "-", ".", "s", "x", "5x", "5 s", " 5", "5s ", "1m30", "30m1h", "5m5m", "1..2", "1.2.3", "1e3",
        "+5", "infinity", "inf", "nan", "0x10", "5S", "１", "--1", "1us1µs",
    ] {
        assert_eq!(refused(text), Err("is not a duration"), "{text}");
    }
    for text in ["-1", "-5s", "-0.1", "-1h30m"] {
        assert_eq!(refused(text), Err("is negative"), "{text}");
    }
    for text in ["36501d", "36500d1ns", "99999999999999999999999999", "18446744073709551615d"] {
        assert_eq!(refused(text), Err("is longer than 100 years"), "{text}");
    }
}

#[test]
fn a_refusal_says_what_was_given_and_what_is_accepted() {
    let error = duration("soon").map_err(|error| error.to_string());
    assert_eq!(
        error,
        Err("`soon` is not a duration; accepted: `500ms`, `10s`, `5m`, `1h30m`, `1d`, \
             or a number of seconds such as `0.3`"
            .to_owned())
    );
}

#[test]
fn signals_of_the_contract_are_read() {
    for (text, expected) in [
        ("TERM", 15),
        ("SIGTERM", 15),
        ("sigterm", 15),
        ("term", 15),
        ("15", 15),
        ("9", 9),
        ("64", 64),
        ("RTMIN", 34),
        ("RTMIN+3", 37),
        ("SIGRTMIN+3", 37),
        ("RTMAX-1", 63),
        ("rtmax", 64),
        ("RTMIN+30", 64),
        ("IOT", 6),
        ("SYS", 31),
    ] {
        assert_eq!(signal(text).map(Signal::number), Ok(expected), "{text}");
    }
}

#[test]
fn what_is_no_signal_is_refused() {
    for text in [
        "",
        "0",
        "00",
        "65",
        "-9",
        "-TERM",
        "+9",
        "TERMX",
        "SIG",
        "SIGSIGTERM",
        "RTMIN-1",
        "RTMAX+1",
        "RTMIN+",
        "RTMIN+31",
        "RTMIN++3",
        "RTMIN+-3",
        "99999999999999999999",
        "T ERM",
        "ſig",
        "EXIT",
    ] {
        assert!(signal(text).is_err(), "{text}");
    }
}

#[test]
fn every_signal_shown_reads_back() {
    for number in 1..=64 {
        let value = signal(&number.to_string()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(signal(&value.to_string()), Ok(value));
        assert_eq!(signal(&format!("sig{value}")).is_ok(), !(32..=33).contains(&number));
    }
}

#[test]
fn sizes_of_the_contract_are_read() {
    for (text, expected) in [
        ("0", 0),
        ("1", 1),
        ("64K", 65_536),
        ("64k", 65_536),
        ("64KiB", 65_536),
        ("512M", 536_870_912),
        ("2G", 2_147_483_648),
        ("16777215T", 18_446_742_974_197_923_840),
    ] {
        assert_eq!(size(text), Ok(expected), "{text}");
    }
    for text in ["", "K", "-1", "1.5G", "1KB", "1 K", "1X", "1µib", "ib", "16777216T", "99999999999999999999"]
    {
        assert!(size(text).is_err(), "{text}");
    }
}

#[test]
fn names_are_safe_words() {
    let longest = "a".repeat(64);
    for text in ["a", "web", "Web-1", "3f9", "a.b_c-d", longest.as_str()] {
        assert_eq!(name(text), Ok(text.to_owned()));
    }
    let too_long = "a".repeat(65);
    for text in ["", ".", "..", "-a", "_a", ".a", "a/b", "a b", "ä", "a\n", "a\0", too_long.as_str()] {
        assert!(name(text).is_err(), "{text}");
    }
}

#[test]
fn labels_have_a_key_and_a_value() {
    assert_eq!(label("a=b=c"), Ok(Label { key: "a".into(), value: "b=c".into() }));
    assert_eq!(
        label("example.org/tier="),
        Ok(Label { key: "example.org/tier".into(), value: String::new() })
    );
    for text in ["", "a", "=b", "a b=c", "a=\n"] {
        assert!(label(text).is_err(), "{text}");
    }
}

#[test]
fn settings_keep_every_byte() {
    let raw = OsStr::from_bytes(b"K\xff=\xfe=x");
    let setting = env_setting(raw).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(setting.key.as_bytes(), b"K\xff");
    assert_eq!(setting.value.as_deref().map(OsStrExt::as_bytes), Some(&b"\xfe=x"[..]));
    assert_eq!(env_setting(OsStr::new("K")), Ok(EnvSetting { key: "K".into(), value: None }));
    assert_eq!(env_setting(OsStr::new("K=")), Ok(EnvSetting { key: "K".into(), value: Some("".into()) }));
    assert!(env_setting(OsStr::new("=x")).is_err());
    assert!(env_setting(OsStr::new("")).is_err());
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in any::<String>()) {
        let _ = (duration(&text), signal(&text), size(&text), name(&text), label(&text));
    }

    #[test]
    fn no_near_miss_makes_a_parser_panic(text in "[-+]?[0-9.]{0,30}(ns|us|µs|ms|s|m|h|d|K|M|iB|SIG|RT(MIN|MAX)|[-+]){0,3}[0-9.]{0,25}[a-zµ]{0,3}") {
        let _ = (duration(&text), signal(&text), size(&text), name(&text), label(&text));
    }

    #[test]
    fn no_bytes_make_a_setting_panic(bytes in any::<Vec<u8>>()) {
        let _ = env_setting(OsStr::from_bytes(&bytes));
    }

    #[test]
    fn a_duration_shown_reads_back(nanoseconds in 0..=3_153_600_000_000_000_000u64) {
        let value = Duration::from_nanos(nanoseconds);
        prop_assert_eq!(duration(&Exact(value).to_string()), Ok(value));
    }

    #[test]
    fn decimals_of_seconds_are_exact(seconds in 0..=1_000_000u64, nanoseconds in 0..1_000_000_000u32) {
        let expected = Duration::new(seconds, nanoseconds);
        prop_assert_eq!(duration(&format!("{seconds}.{nanoseconds:09}")), Ok(expected));
        prop_assert_eq!(duration(&format!("{seconds}.{nanoseconds:09}s")), Ok(expected));
    }

    #[test]
    fn a_size_shown_reads_back(bytes in any::<u64>(), shift in 0..40u32) {
        let value = (bytes >> shift) << shift;
        prop_assert_eq!(size(&Bytes(value).to_string()), Ok(value));
    }

    #[test]
    fn a_name_taken_is_a_safe_file_name(text in "[a-zA-Z0-9_./ -]{0,70}") {
        if let Ok(name) = name(&text) {
            prop_assert_eq!(&name, &text);
            prop_assert!(!name.contains('/') && name != "." && name != ".." && name.len() <= 64);
        }
    }
}

#[test]
fn a_size_in_a_sentence_has_its_unit_in_full() {
    for (bytes, expected) in
        [(512 << 20, "512 MiB"), (3 << 30, "3 GiB"), (1000, "1000 bytes"), (0, "0 bytes")]
    {
        assert_eq!(Bytes(bytes).spelled(), expected);
    }
}

/// spec: 17.1
#[test]
fn limits_are_read_and_absurd_ones_are_refused() {
    assert_eq!(memory("512M"), Ok(512 << 20));
    assert_eq!(memory("1M"), Ok(1 << 20));
    assert_eq!(memory("1024T"), Ok(1 << 50));
    for text in ["0", "-1", "-5M", "1023K", "1025T", "16777216T", "1.5G", "much", ""] {
        assert!(memory(text).is_err(), "{text}");
    }
    assert_eq!(memory("0").unwrap_err().problem, "is too little memory");
    assert_eq!(memory("1025T").unwrap_err().problem, "is too much memory");
    assert_eq!(pids("1"), Ok(1));
    assert_eq!(pids("4194304"), Ok(4 << 20));
    for text in ["0", "-1", "4194305", "1.5", "1K", "max", ""] {
        assert!(pids(text).is_err(), "{text}");
    }
    for (text, ms) in [("1.5", 1500), ("0.01", 10), (".5", 500), ("2", 2000), ("8192", 8_192_000)] {
        assert_eq!(cpus(text), Ok(Duration::from_millis(ms)), "{text}");
    }
    for text in ["0", "0.009", "-1", "+1", "8193", "1e2", "inf", "nan", "1,5", "1.5.0", ".", ""] {
        assert!(cpus(text).is_err(), "{text}");
    }
}
