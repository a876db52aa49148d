//! Text forms of binary things: PEM (RFC 7468), hexadecimal pairs with colons, SHA-1 as a name.

use std::fmt::Write as _;

use aws_lc_rs::digest;

/// Characters in a line of PEM (RFC 7468, section 2).
const PEM_LINE_CHARACTERS: usize = 64;

/// Bytes that fill a line of PEM.
const PEM_LINE_BYTES: usize = PEM_LINE_CHARACTERS / 4 * 3;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) const CERTIFICATE_LABEL: &str = "CERTIFICATE";
pub(crate) const REQUEST_LABEL: &str = "CERTIFICATE REQUEST";
pub(crate) const PRIVATE_KEY_LABEL: &str = "PRIVATE KEY";

/// The PEM of `der` under `label`.
///
/// The text is allocated once at its final length, so that no copy of a key is left behind by growth.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let lines = der.len().div_ceil(PEM_LINE_BYTES);
    let marks = 2 * label.len() + "-----BEGIN -----\n-----END -----\n".len();
    let mut text = String::with_capacity(marks + der.len().div_ceil(3) * 4 + lines);
    text.extend(["-----BEGIN ", label, "-----\n"]);
    for line in der.chunks(PEM_LINE_BYTES) {
        for group in line.chunks(3) {
            push_base64(&mut text, group);
        }
        text.push('\n');
    }
    text.extend(["-----END ", label, "-----\n"]);
    text
}

/// Pushes the four characters of one to three bytes.
fn push_base64(text: &mut String, group: &[u8]) {
    let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
    let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    for position in 0..4 {
        if position <= group.len() {
            text.push(char::from(BASE64[(bits >> (18 - 6 * position) & 0x3f) as usize]));
        } else {
            text.push('=');
        }
    }
}

/// Lower-case hexadecimal pairs joined by colons.
pub(crate) fn colon_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 3);
    for (index, byte) in bytes.iter().enumerate() {
        if index > 0 {
            text.push(':');
        }
        write!(text, "{byte:02x}").expect("invariant: writing to a string succeeds");
    }
    text
}

/// The name that Consul gives a root: SHA-1 of its DER. Nothing is proved by it.
pub(crate) fn root_id(der: &[u8]) -> String {
    colon_hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, der).as_ref())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn pem_reads_back_as_it_was_for_every_length() {
        for len in 0..200_u8 {
            let der: Vec<u8> = (0..len).map(|byte| byte.wrapping_mul(83)).collect();
            let text = pem(CERTIFICATE_LABEL, &der);
            assert_eq!(text.len(), text.capacity(), "{len}: grew");
            assert!(text.lines().all(|line| line.len() <= PEM_LINE_CHARACTERS));
            assert_eq!(CertificateDer::from_pem_slice(text.as_bytes()).unwrap().as_ref(), der, "{len}");
        }
    }

    #[test]
    fn names_are_colon_separated_pairs() {
        assert_eq!(colon_hex(&[]), "");
        assert_eq!(colon_hex(&[0, 0x7f, 0xff]), "00:7f:ff");
        // The test vector of FIPS 180, "abc".
        assert_eq!(root_id(b"abc"), "a9:99:3e:36:47:06:81:6a:ba:3e:25:71:78:50:c2:6c:9c:d0:d8:9d");
    }
}
