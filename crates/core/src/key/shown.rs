//! Which values may be seen in stores, logs, exports and on screens.
//!
//! Callers choose the values, and some make a subject of what should have stayed with them: a token, an address. What
//! looks like that is hashed, whether or not a policy calls its attribute sensitive. The lists here are fixed and don't
//! follow Unicode's versions: two releases that disagree on a value would count one subject as two.

/// Longer values are hashed, bytes.
pub const MAX_SHOWN_BYTES: usize = 64;

/// Beginnings of well-known credentials.
const CREDENTIALS: &[&str] = &[
    "sk_",
    "sk-",
    "rk_",
    "pk_",
    "whsec_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "npm_",
    "pypi-",
    "hf_",
    "SG.",
    "-----BEGIN ",
];
/// Of an Authorization header, whose case doesn't count.
const SCHEMES: &[&str] = &["bearer ", "basic ", "digest "];

/// Whether a value, in composed form, may be shown as it is.
pub(super) fn may_be_shown(value: &str) -> bool {
    value.len() <= MAX_SHOWN_BYTES
        && !value.chars().any(is_unprintable)
        && !looks_like_email(value)
        && !looks_like_jwt(value)
        && !looks_like_credential(value)
}

/// Controls, formats (which turn the direction of text, say, or have no width), separators of lines, private use and
/// no characters.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{8e2}' | '\u{180e}' | '\u{feff}' | '\u{110bd}'
            | '\u{110cd}' | '\u{600}'..='\u{605}' | '\u{890}'..='\u{891}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' | '\u{e0000}'..='\u{10ffff}')
        || u32::from(c) & 0xfffe == 0xfffe
}

/// Something, an at sign, and a name with a dot and a last part that is no number.
fn looks_like_email(value: &str) -> bool {
    value.match_indices('@').any(|(at, _)| {
        let before = value[..at].chars().next_back();
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-' || !c.is_ascii();
        let rest = &value[at + 1..];
        let name = rest.split(|c| !in_name(c)).next().unwrap_or_default();
        let (host, top) = name
            .trim_end_matches('.')
            .rsplit_once('.')
            .unwrap_or_default();
        before.is_some_and(|c| !c.is_ascii_whitespace())
            && !host.is_empty()
            && top.starts_with(|c: char| !c.is_ascii_digit())
    })
}

/// Base64 of an object in JSON, a dot, and two parts more.
fn looks_like_jwt(value: &str) -> bool {
    value.starts_with("eyJ") && value.matches('.').count() >= 2
}

fn looks_like_credential(value: &str) -> bool {
    let begins_with = |scheme: &&str| {
        let start = value.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    CREDENTIALS.iter().any(|start| value.starts_with(start)) || SCHEMES.iter().any(begins_with)
}
