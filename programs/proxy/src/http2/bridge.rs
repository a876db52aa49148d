//! Between the two versions of HTTP: a request that comes in one and goes on in the other.

mod to_http1;
mod to_http2;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

pub(crate) use self::to_http1::{Asked, to_http1};
pub(crate) use self::to_http2::{Bridged, to_http2};

fn put_map<'a>(map: &mut HeaderMap, fields: impl Iterator<Item = (&'a str, &'a [u8])>) {
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
}
