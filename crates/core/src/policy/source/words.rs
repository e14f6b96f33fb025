//! How things are put in complaints.

/// A file's text is repeated in messages up to this length.
pub(super) const MAX_QUOTED_CHARS: usize = 60;

/// What `text` may be a slip of the pen for.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.len() > MAX_QUOTED_CHARS {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(text, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= 2 && distance < candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

/// A duration in its largest whole unit: `90m`, `24h`, `100ms`.
pub fn show_ms(ms: u64) -> String {
    [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ]
    .into_iter()
    .find(|&(_, unit)| ms > 0 && ms.is_multiple_of(unit))
    .map_or_else(
        || format!("{ms}ms"),
        |(name, unit)| format!("{}{name}", ms / unit),
    )
}

/// `"a", "b" or "c"`.
pub fn any_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| format!("{name:?}")).collect();
    match names.pop() {
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} or {last}", names.join(", ")),
        None => String::from("nothing"),
    }
}

/// A text of the file for a message: quoted, escaped, cut short.
pub fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// `, did you mean "burst"?` where one of `candidates` is near, else nothing.
pub fn did_you_mean<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(text, candidates)
        .map(|near| format!(", did you mean {near:?}?"))
        .unwrap_or_default()
}
