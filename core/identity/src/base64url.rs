//! base64url without padding (RFC 4648, section 5) of 32 bytes: one text for each value.

/// Bytes that are encoded.
const BYTES: usize = 32;

/// Digits that they take.
const DIGITS: usize = 43;

/// Bits in a digit.
const DIGIT_BITS: u32 = 6;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Pushes the text of `bytes`.
pub(crate) fn push(text: &mut String, bytes: &[u8; BYTES]) {
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << u8::BITS | usize::from(*byte)) << (8 * (3 - group.len()));
        for position in 0..=group.len() {
            text.push(char::from(ALPHABET[bits >> (18 - 6 * position) & 0x3f]));
        }
    }
}

/// Reads what [`push`] wrote; `None` for any other text, another of the same value included.
pub(crate) fn parse(text: &str) -> Option<[u8; BYTES]> {
    if text.len() != DIGITS {
        return None;
    }
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    let (mut bits, mut held) = (0_u32, 0);
    for digit in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == digit).and_then(|value| u32::try_from(value).ok())?;
        bits = bits << DIGIT_BITS | value;
        held += DIGIT_BITS;
        if held >= u8::BITS {
            held -= u8::BITS;
            bytes[filled] = u8::try_from(bits >> held).ok()?;
            filled += 1;
            bits &= (1 << held) - 1;
        }
    }
    // What the last digit has too many.
    (bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of(bytes: &[u8; BYTES]) -> String {
        let mut text = String::new();
        push(&mut text, bytes);
        text
    }

    #[test]
    fn it_is_the_alphabet_for_urls() {
        assert_eq!(text_of(&[0; BYTES]), "A".repeat(DIGITS));
        // By another implementation.
        assert_eq!(text_of(&[0xff; BYTES]), "__________________________________________8");
        assert_eq!(
            text_of(&std::array::from_fn(|index| u8::try_from(index * 7 + 3).unwrap())),
            "AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dw"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", &"A".repeat(42), &"A".repeat(44), &format!("{}=", "A".repeat(42)), &"+".repeat(DIGITS)] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        // The last digit has two bits more than are needed.
        assert_eq!(parse(&format!("{}B", "A".repeat(42))), None);
    }

    proptest! {
        #[test]
        fn every_value_survives_the_round_trip(bytes in any::<[u8; BYTES]>()) {
            prop_assert_eq!(parse(&text_of(&bytes)), Some(bytes));
        }

        #[test]
        fn no_value_has_two_texts(text in "[A-Za-z0-9_-]{43}") {
            if let Some(bytes) = parse(&text) {
                prop_assert_eq!(text_of(&bytes), text);
            }
        }
    }
}
