//! The bytes of a request's body, without their compression.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;
use http_body_util::BodyExt as _;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// The compressed bytes that are read at one time: one byte may stand for a thousand.
const PACKED: usize = 4 << 10;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadBody {
    #[error("the body broke off")]
    BrokeOff,
    #[error("the body is not gzip: {0}")]
    NotGzip(io::Error),
    #[error("`Content-Encoding` is neither `gzip` nor `identity`")]
    Encoding,
    #[error("the form is not valid: {0}")]
    Form(&'static str),
}

/// The most bytes that are read of a body that nothing needs, and the time for that.
const REST: usize = 16 << 20;
const REST_TIME: Duration = Duration::from_secs(2);

/// The compressed body of a request, also for those who want it to be read to its end.
#[derive(Debug, Clone)]
pub(super) struct Received(Arc<Mutex<Body>>);

impl Received {
    pub(super) fn new(body: Body) -> Received {
        Received(Arc::new(Mutex::new(body)))
    }

    async fn next(&self) -> Result<Option<Bytes>, BadBody> {
        let mut body = self.0.lock().await;
        while let Some(frame) = body.frame().await {
            let data = frame.map_err(|_| BadBody::BrokeOff)?.into_data();
            if let Ok(data) = data
                && !data.is_empty()
            {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the rest of the body, unless that is long: many clients read no answer before they have sent everything, and take a
    /// connection that is closed before for a failure of the network.
    pub(super) async fn skip(&self) {
        let skipped = async {
            let mut length = 0;
            while let Ok(Some(bytes)) = self.next().await {
                length += bytes.len();
                if length > REST {
                    break;
                }
            }
        };
        let _ = timeout(REST_TIME, skipped).await;
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct Source {
    received: Received,
    unpacker: Option<MultiGzDecoder<Vec<u8>>>,
    /// Compressed bytes that are not read yet.
    packed: Bytes,
}

impl Source {
    /// Begins to read a body.
    ///
    /// # Errors
    /// When it is compressed in another way than with gzip.
    pub(super) fn new(headers: &HeaderMap, received: Received) -> Result<Source, BadBody> {
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
        let unpacker = match encoding.map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "identity") => None,
            Some("gzip" | "x-gzip") => Some(MultiGzDecoder::new(Vec::new())),
            Some(_) => return Err(BadBody::Encoding),
        };
        Ok(Source { received, unpacker, packed: Bytes::new() })
    }

    /// Returns the next bytes, which are never none; `None` at the end.
    ///
    /// # Errors
    /// When the body breaks off, or is not compressed as it says.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, BadBody> {
        loop {
            if self.packed.is_empty() {
                match self.received.next().await? {
                    Some(bytes) => self.packed = bytes,
                    None => return self.rest(),
                }
            }
            let Some(unpacker) = &mut self.unpacker else {
                return Ok(Some(std::mem::take(&mut self.packed)));
            };
            let part = self.packed.split_to(self.packed.len().min(PACKED));
            unpacker.write_all(&part).map_err(BadBody::NotGzip)?;
            let bytes = std::mem::take(unpacker.get_mut());
            if !bytes.is_empty() {
                return Ok(Some(bytes.into()));
            }
        }
    }

    /// Returns what the compression holds back at the end.
    fn rest(&mut self) -> Result<Option<Bytes>, BadBody> {
        let Some(mut unpacker) = self.unpacker.take() else { return Ok(None) };
        unpacker.try_finish().map_err(BadBody::NotGzip)?;
        let bytes = std::mem::take(unpacker.get_mut());
        Ok((!bytes.is_empty()).then(|| bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    async fn read(encoding: &'static str, body: Vec<u8>) -> Result<Vec<u8>, BadBody> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
        let mut source = Source::new(&headers, Received::new(Body::from(body)))?;
        let mut all = Vec::new();
        while let Some(bytes) = source.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn gzip_is_undone() {
        let text = b"many words ".repeat(10_000);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&text).unwrap();
        let packed = encoder.finish().unwrap();
        assert_eq!(read("gzip", packed.clone()).await.unwrap(), text);
        assert_eq!(read("identity", text.clone()).await.unwrap(), text);
        assert!(read("gzip", packed[..packed.len() - 9].to_vec()).await.is_err());
        assert!(matches!(read("gzip", text).await, Err(BadBody::NotGzip(_))));
        assert!(matches!(read("br", packed).await, Err(BadBody::Encoding)));
    }
}
