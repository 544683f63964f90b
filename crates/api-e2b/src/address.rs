//! Which sandbox and which of its ports a request names: by headers, or by the first label of the host name.

use axum::http::{HeaderMap, header};
use penfold_state::Id;

/// The port of the data plane.
pub(crate) const GUEST_PORT: u16 = 49983;

/// A port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// The id of the sandbox, as the request has it.
    pub(crate) id: String,
    /// The port; 0 if it is none.
    pub(crate) port: u16,
}

impl Address {
    /// Reads `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, or a host `PORT-ID.DOMAIN`.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Address> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(id) = text("e2b-sandbox-id") {
            let port = text("e2b-sandbox-port").map_or(Some(GUEST_PORT), |port| port.parse().ok());
            return Some(Address { id: id.to_owned(), port: port.unwrap_or(0) });
        }
        let host = headers.get(header::HOST)?.to_str().ok()?;
        let (label, _) = host.split_once('.')?;
        let (port, id) = label.split_once('-')?;
        let port = port.parse().ok()?;
        Id::is_short(id).then(|| Address { id: id.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(pairs: &[(&'static str, &'static str)]) -> Option<Address> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        Address::of(&headers)
    }

    #[test]
    fn headers_come_before_the_host() {
        let id = penfold_state::Id::new().unwrap().short();
        let host: &'static str = Box::leak(format!("8000-{id}.example.org:443").into_boxed_str());
        assert_eq!(of(&[("host", host)]), Some(Address { id: id.clone(), port: 8000 }));
        let named = of(&[("host", host), ("e2b-sandbox-id", "x"), ("e2b-sandbox-port", "49983")]);
        assert_eq!(named, Some(Address { id: "x".to_owned(), port: 49983 }));
        assert_eq!(of(&[("e2b-sandbox-id", "x")]), Some(Address { id: "x".to_owned(), port: GUEST_PORT }));
        for other in ["localhost:3000", "127.0.0.1", "1-2.example.org", "example.org"] {
            assert_eq!(of(&[("host", other)]), None, "{other}");
        }
    }
}
