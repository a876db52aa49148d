//! The name of a store.

use std::fmt;

/// Tells one store from every other; made at random when the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(u128);

impl StoreId {
    pub(crate) fn random() -> Self {
        Self(fastrand::u128(..))
    }

    pub(crate) fn to_le_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    pub(crate) fn from_le_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_exact = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_exact.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(Self)
    }

    /// Half as long.
    pub(crate) fn fold(self) -> u64 {
        let halves = self.0.to_le_bytes();
        let half = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        half(&halves[..8]) ^ half(&halves[8..])
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_reads_back_and_nothing_else_does() {
        let id = StoreId(0x0123);
        assert_eq!(StoreId::parse(&id.to_string()), Some(id));
        for text in ["", "123", &"+".repeat(32), &"0".repeat(33)] {
            assert_eq!(StoreId::parse(text), None, "{text:?}");
        }
    }
}
