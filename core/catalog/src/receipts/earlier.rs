//! The transactions of a command before its last, as servers tell one another of them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use starling_model::Revision;

/// Most that are spoken of, so that they fit into a request; older ones are left out.
const EARLIER_MAX: usize = 1024;

/// The revisions of a command's transactions before its last one; most commands have none. Written as ranges, as in
/// `12-140,150`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Earlier(BTreeSet<Revision>);

/// Why a text is no [`Earlier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not written as revisions and ranges of them, at most {EARLIER_MAX}, as in 12-140,150")]
pub struct EarlierError;

impl Earlier {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// From the oldest to the newest.
    pub fn iter(&self) -> impl Iterator<Item = Revision> + Clone {
        self.0.iter().copied()
    }

    /// Adds those of another; whether there was any that was not here.
    pub fn extend(&mut self, other: &Self) -> bool {
        let before = self.0.len();
        self.0.extend(other.iter());
        while self.0.len() > EARLIER_MAX {
            self.0.pop_first();
        }
        self.0.len() > before
    }
}

impl FromIterator<Revision> for Earlier {
    fn from_iter<I: IntoIterator<Item = Revision>>(revisions: I) -> Self {
        let mut all = Self::default();
        all.extend(&Self(revisions.into_iter().collect()));
        all
    }
}

impl fmt::Display for Earlier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = left.next() {
            let mut last = first;
            while let Some(next) = left.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            write!(formatter, "{separator}{first}")?;
            if last > first {
                write!(formatter, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for Earlier {
    type Err = EarlierError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = BTreeSet::new();
        let number = |text: &str| text.parse::<u64>().map_err(|_| EarlierError);
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            let is_within = last >= first && last - first < EARLIER_MAX as u64;
            if !is_within || all.len() > EARLIER_MAX {
                return Err(EarlierError);
            }
            all.extend((first..=last).map(Revision));
        }
        if all.len() > EARLIER_MAX { Err(EarlierError) } else { Ok(Self(all)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_as_they_are_written() {
        for text in ["", "7", "7-9", "1,3-5,18446744073709551615", "1-1024"] {
            assert_eq!(text.parse::<Earlier>().expect("good").to_string(), text);
        }
        assert_eq!([3, 1, 2, 7].map(Revision).into_iter().collect::<Earlier>().to_string(), "1-3,7");
        for text in [",", "a", "5-4", "1-", "-1", "1,,2", "1-1025", "0-18446744073709551615", "1-600,1000-1600"] {
            assert_eq!(text.parse::<Earlier>(), Err(EarlierError), "{text}");
        }
    }

    #[test]
    fn what_is_new_is_told() {
        let mut some: Earlier = "1-3".parse().expect("good");
        assert!(!some.extend(&"2".parse().expect("good")));
        assert!(some.extend(&"2-4".parse().expect("good")));
        assert_eq!(some.to_string(), "1-4");
    }
}
