//! Heads of requests without the buffer that they were read into.
//!
//! Every name and value of a head is a slice of that buffer, eight KiB and more, which stays as long as any of them does. A query
//! that waits for minutes would keep it for a few hundred bytes, and the connection, which goes on looking whether its caller is
//! still there, would take another one.

use http::{HeaderValue, Request, Uri};

/// The same request, its head copied. What cannot be copied stays as it is.
pub(super) fn detached<B>(mut request: Request<B>) -> Request<B> {
    for value in request.headers_mut().values_mut() {
        if let Ok(mut copy) = HeaderValue::from_bytes(value.as_bytes()) {
            copy.set_sensitive(value.is_sensitive());
            *value = copy;
        }
    }
    let text = request.uri().to_string();
    if let Ok(copy) = Uri::try_from(text) {
        *request.uri_mut() = copy;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_the_same() {
        for uri in ["/", "*", "/v1/health/service/web?index=7&wait=5m", "http://host:8500/a%20b?", "/?a=%00"] {
            let mut request =
                Request::builder().uri(uri).header("x-one", "1").header("x-one", "2").body(()).expect("good");
            request.headers_mut().append("x-bytes", HeaderValue::from_bytes(b"\xff\x80").expect("allowed"));
            let (headers, before) = (request.headers().clone(), request.uri().clone());
            let copy = detached(request);
            assert_eq!((copy.headers(), copy.uri()), (&headers, &before));
        }
    }
}
