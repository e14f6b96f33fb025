//! The patterns of `match`: literal text in which `*` stands for any run of characters, none included.

use crate::key::normalise;
use std::fmt;

/// A compiled pattern. Matching is linear in pattern and value, whatever either holds: callers choose the values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: String,
    /// What stands between the stars; one more than there are stars.
    pieces: Vec<String>,
}

// === impl Pattern ===

impl Pattern {
    /// Every text is a pattern; it is put in Unicode's composed form, as the values are.
    pub fn new(text: &str) -> Self {
        let text = normalise(text).into_owned();
        let pieces = text.split('*').map(str::to_owned).collect();
        Self { text, pieces }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `value` is of this form.
    ///
    /// The leftmost place for each inner piece leaves the most room for the next, so nothing is ever tried twice.
    pub fn matches(&self, value: &str) -> bool {
        let value = normalise(value);
        let [first, inner @ .., last] = self.pieces.as_slice() else {
            return *value == *self.text;
        };
        let Some(rest) = value
            .strip_prefix(first.as_str())
            .and_then(|rest| rest.strip_suffix(last.as_str()))
        else {
            return false;
        };
        inner
            .iter()
            .try_fold(rest, |rest, piece| {
                rest.find(piece.as_str())
                    .map(|at| &rest[at + piece.len()..])
            })
            .is_some()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters_none_included() {
        for (pattern, value, matches) in [
            ("/v1/*", "/v1/", true),
            ("/v1/*", "/v1/search/deep", true),
            ("/v1/*", "/v1", false),
            ("/v1/*", "x/v1/", false),
            ("*", "", true),
            ("*", "ä:b", true),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
            ("get", "get", true),
            ("get", "GET", false),
            ("get", "gets", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("*.json", "a.json", true),
            ("*.json", "a.json.gz", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aba", false),
            ("/*/export", "/v1/a/export", true),
            ("*ü*", "grün", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(value),
                matches,
                "{pattern:?} against {value:?}"
            );
        }
    }

    #[test]
    fn both_ways_of_writing_an_accent_are_the_same_to_a_pattern() {
        let (composed, decomposed) = ("caf\u{e9}*", "cafe\u{301}s");
        assert!(Pattern::new(composed).matches(decomposed));
        assert!(Pattern::new("cafe\u{301}*").matches("caf\u{e9}s"));
    }

    #[test]
    fn no_other_character_is_special() {
        assert!(Pattern::new(r"a?[b]\.(c)").matches(r"a?[b]\.(c)"));
        assert!(!Pattern::new("a?").matches("ab"));
        assert!(!Pattern::new("a.").matches("ab"));
    }

    /// The definition of matching, exponential and obviously right.
    fn matches_by_definition(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => {
                (0..=value.len()).any(|at| matches_by_definition(rest, &value[at..]))
            }
            Some((c, rest)) => value.first() == Some(c) && matches_by_definition(rest, &value[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab*]{0,7}", value in "[ab]{0,9}") {
            prop_assert_eq!(
                Pattern::new(&pattern).matches(&value),
                matches_by_definition(pattern.as_bytes(), value.as_bytes())
            );
        }

        #[test]
        fn any_text_matches_itself_and_the_star(value: String) {
            prop_assert!(Pattern::new("*").matches(&value));
            prop_assert!(Pattern::new(&value).matches(&value));
        }
    }
}
