//! What keeps a caller with one endpoint: a hash of something in its requests.

use starling_model::{HashOn, HashPolicy};
use starling_traffic::Request;
use starling_traffic::balance::hash as hash_of;

use crate::served::Peer;

/// The hash of a request, and the cookie to be set so that the next one has the same.
pub(crate) fn hash(policies: &[HashPolicy], request: &Request<'_>, peer: &Peer) -> (Option<u64>, Option<String>) {
    let (mut hash, mut made) = (None::<u64>, None);
    for policy in policies {
        let found = match &policy.on {
            HashOn::Header(name) => field(request, name),
            HashOn::QueryParameter(name) => parameter(request.target(), name).map(|value| hash_of(value.as_bytes())),
            HashOn::SourceAddress => Some(hash_of(peer.connection.remote().ip().to_string().as_bytes())),
            HashOn::Cookie { name, ttl, path, session } => match cookie(request, name) {
                Some(hash) => Some(hash),
                None if ttl.is_some() || *session => {
                    let value = format!("{:016x}", fastrand::u64(..));
                    let age = ttl.map(|ttl| format!("; Max-Age={}", ttl.as_secs())).unwrap_or_default();
                    let place = path.as_ref().map(|path| format!("; Path={path}")).unwrap_or_default();
                    made = Some(format!("{name}=\"{value}\"{age}{place}; HttpOnly"));
                    Some(hash_of(value.as_bytes()))
                }
                None => None,
            },
        };
        if let Some(found) = found {
            hash = Some(hash.map_or(found, |before| before.rotate_left(1) ^ found));
            if policy.terminal {
                break;
            }
        }
    }
    (hash, made)
}

fn field(request: &Request<'_>, name: &str) -> Option<u64> {
    let mut hash = None;
    request.headers().any(name, &mut |value| {
        hash = Some(hash_of(value));
        true
    });
    hash
}

fn cookie(request: &Request<'_>, name: &str) -> Option<u64> {
    let mut hash = None;
    request.headers().any("cookie", &mut |value| {
        let pairs = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let found = pairs.filter_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).next();
        let bare = found.map(|value| value.strip_prefix(b"\"").and_then(|it| it.strip_suffix(b"\"")).unwrap_or(value));
        hash = bare.filter(|value| !value.is_empty()).map(hash_of);
        hash.is_some()
    });
    hash
}

fn parameter<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    let query = target.split_once('?')?.1;
    query.split('&').find_map(|pair| pair.split_once('=').filter(|(found, _)| *found == name).map(|(_, value)| value))
}
