//! The leaks as `JUnit` XML, for CI servers: a failed case for each test that leaked.

use std::collections::BTreeMap;

use penfold_state::{DescribedProcess, Report};
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

use super::report;

/// Returns the document.
pub(super) fn document(report: &Report, leaks: &[DescribedProcess]) -> Vec<u8> {
    let mut cases: BTreeMap<&str, Vec<&DescribedProcess>> = BTreeMap::new();
    for leak in leaks {
        cases.entry(leak.test.as_deref().unwrap_or("unknown test")).or_default().push(leak);
    }
    let (tests, failures) = (cases.len().max(1).to_string(), cases.len().to_string());
    let time = format!("{:.3}", std::time::Duration::from_millis(report.duration_ms).as_secs_f64());
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    let counts = [
        ("name", "penfold guard"),
        ("tests", tests.as_str()),
        ("failures", failures.as_str()),
        ("time", &time),
    ];
    // Writing to a Vec cannot fail.
    let _ = writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
    let _ = writer.create_element("testsuites").with_attributes(counts).write_inner_content(|writer| {
        writer.create_element("testsuite").with_attributes(counts).write_inner_content(|writer| {
            if cases.is_empty() {
                let name = [("classname", "penfold guard"), ("name", "nothing outlives the tests")];
                writer.create_element("testcase").with_attributes(name).write_empty()?;
            }
            for (test, leaks) in &cases {
                case(writer, test, leaks)?;
            }
            Ok(())
        })?;
        Ok(())
    });
    let mut text = writer.into_inner();
    text.push(b'\n');
    text
}

fn case(writer: &mut Writer<Vec<u8>>, test: &str, leaks: &[&DescribedProcess]) -> std::io::Result<()> {
    let lines: Vec<String> = leaks.iter().flat_map(|leak| report::describe(leak)).collect();
    let lines = plain(&lines.join("\n"));
    let first = plain(&format!(
        "left {}",
        leaks.iter().map(|leak| leak.command.as_str()).collect::<Vec<_>>().join("; ")
    ));
    let name = plain(test);
    let attributes = [("classname", "penfold guard"), ("name", name.as_str())];
    writer.create_element("testcase").with_attributes(attributes).write_inner_content(|writer| {
        let attributes = [("type", "leak"), ("message", first.as_str())];
        writer
            .create_element("failure")
            .with_attributes(attributes)
            .write_text_content(BytesText::new(&lines))?;
        Ok(())
    })?;
    Ok(())
}

/// Replaces the characters that XML cannot have, even escaped.
fn plain(text: &str) -> String {
    let is_none = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if is_none(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaks_of_one_test_are_one_failed_case() {
        let leak = |command: &str, test: Option<&str>| DescribedProcess {
            command: command.to_owned(),
            test: test.map(str::to_owned),
            ..report::tests::leak()
        };
        let leaks =
            [leak("a <&\u{1b}\"", Some("t::one")), leak("b\u{ffff}", Some("t::one")), leak("c", None)];
        let text = String::from_utf8(document(&report::tests::report(), &leaks)).unwrap();
        assert_eq!(text.matches("<testcase").count(), 2, "{text}");
        assert!(text.contains("failures=\"2\"") && text.contains("name=\"t::one\""), "{text}");
        assert!(text.contains("leak: b\u{fffd} (pid"), "{text}");
        assert!(text.contains("a &lt;&amp;\u{fffd}&quot;"), "{text}");
        let text = String::from_utf8(document(&report::tests::report(), &[])).unwrap();
        assert!(text.contains("tests=\"1\" failures=\"0\"") && !text.contains("<failure"), "{text}");
    }
}
