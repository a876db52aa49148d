//! What somebody meant who misspelt a name.

/// Letters up to which a name is short: with two mistakes it would be another word.
const SHORT_LETTERS_MAX: usize = 5;

/// The one of `names` that `word` is a misspelling of: at most two letters, one in a short name, are added, left out,
/// replaced or swapped with their neighbour.
pub(super) fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let allowed = |name: &str| if name.len() <= SHORT_LETTERS_MAX { 1 } else { 2 };
    let judged = names.into_iter().map(|name| (mistakes(word, name), name));
    judged.filter(|(mistakes, name)| *mistakes <= allowed(name)).min().map(|(_, name)| name)
}

/// Mistakes that make one text of the other: the optimal string alignment distance of their bytes.
fn mistakes(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Row `i` holds the mistakes between the first `i` bytes of `a` and every beginning of `b`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut fewest = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                fewest = fewest.min(rows[i - 2][j - 2] + 1);
            }
            row.push(fewest);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelling_is_recognised_and_another_word_is_not() {
        let names = ["name", "protocol", "local_connect_timeout_ms", "local_request_timeout_ms"];
        for (word, meant) in [
            ("nmae", Some("name")),
            ("nam", Some("name")),
            ("namee", Some("name")),
            ("node", None),
            ("protocl", Some("protocol")),
            ("portocol", Some("protocol")),
            ("local_conect_timeout_sm", Some("local_connect_timeout_ms")),
            ("local_timeout_ms", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), meant, "{word}");
        }
    }
}
