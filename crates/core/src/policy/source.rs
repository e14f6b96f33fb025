//! Reads a TOML file field by field, so that every complaint says where and what: file, line, field, expectation.
//!
//! A complaint doesn't end the reading: whoever writes the file sees all of them at once. Both configuration files
//! are read through here; what their fields mean is said elsewhere.

use serde_spanned::Spanned;
use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// Most complaints that are printed about one file.
const MAX_PROBLEMS: usize = 100;
/// A file's text is repeated in messages up to this length.
const MAX_QUOTED_CHARS: usize = 60;

/// One thing that is wrong with a file. Prints as `FILE:LINE: OF: FIELD: WHAT; expected EXPECTED`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    pub file: String,
    /// Counted from 1; `None`: the file as a whole.
    pub line: Option<usize>,
    /// What the field belongs to, such as `policy "api"`; `None`: the file itself.
    pub of: Option<String>,
    pub field: Option<String>,
    pub what: String,
    pub expected: Option<String>,
}

/// Everything that is wrong with one file, in the order of its lines; never empty. Prints one to a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems(Vec<Problem>);

/// A table of the file.
#[derive(Debug, Clone)]
pub struct Table<'r> {
    place: Place<'r>,
    entries: &'r DeTable<'r>,
}

/// A value of the file and the name it goes by.
#[derive(Debug, Clone)]
pub struct Field<'r> {
    place: Place<'r>,
    value: &'r DeValue<'r>,
}

#[derive(Debug, Clone)]
struct Place<'r> {
    reader: &'r Reader<'r>,
    offset: usize,
    of: Option<Rc<str>>,
    path: String,
}

#[derive(Debug)]
struct Reader<'f> {
    file: &'f str,
    line_starts: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
}

/// Reads `text` as TOML and hands its root to `body`; succeeds if `body` does and nobody complained.
/// `file` is the name by which complaints call it.
pub fn read<T>(
    text: &str,
    file: &str,
    body: impl FnOnce(&Table<'_>) -> Option<T>,
) -> Result<T, Problems> {
    let reader = Reader {
        file,
        line_starts: line_starts(text),
        problems: RefCell::default(),
    };
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let span = error.span().unwrap_or_default();
        let at = text
            .get(span.clone())
            .filter(|at| !at.is_empty() && !at.contains('\n'));
        let at = at
            .map(|at| format!(" at {}", quote(at)))
            .unwrap_or_default();
        let what = format!(
            "not TOML{at}: {}",
            error.message().trim_end().replace('\n', " ")
        );
        reader.report(Some(span.start), None, None, what, None);
    }
    if !reader.problems.borrow().is_empty() {
        return Err(reader.into_problems());
    }
    let value = body(&Table {
        place: Place {
            reader: &reader,
            offset: 0,
            of: None,
            path: String::new(),
        },
        entries: root.get_ref(),
    });
    match value {
        Some(value) if reader.problems.borrow().is_empty() => Ok(value),
        _ => Err(reader.into_problems()),
    }
}

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

// === impl Problem ===

impl Problem {
    /// One that concerns a file as a whole: it is missing, say.
    pub fn of_file(file: &str, what: impl Into<String>, expected: Option<&str>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            of: None,
            field: None,
            what: what.into(),
            expected: expected.map(str::to_owned),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        for part in [&self.of, &self.field].into_iter().flatten() {
            write!(f, ": {part}")?;
        }
        write!(f, ": {}", self.what)?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        Ok(())
    }
}

// === impl Problems ===

impl Problems {
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// The complaints about two files as one; `None` when there are none.
    pub fn join(problems: impl IntoIterator<Item = Problems>) -> Option<Self> {
        let all: Vec<_> = problems.into_iter().flat_map(|some| some.0).collect();
        (!all.is_empty()).then_some(Self(all))
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(MAX_PROBLEMS).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        match self.0.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset)
    }

    fn report(
        &self,
        offset: Option<usize>,
        of: Option<&str>,
        field: Option<&str>,
        what: String,
        expected: Option<String>,
    ) {
        self.problems.borrow_mut().push(Problem {
            file: self.file.to_owned(),
            line: offset.map(|offset| self.line(offset)),
            of: of.map(str::to_owned),
            field: field.map(str::to_owned),
            what,
            expected,
        });
    }

    fn into_problems(self) -> Problems {
        let mut problems = self.problems.into_inner();
        if problems.is_empty() {
            problems.push(Problem::of_file(self.file, "not understood", None));
        }
        problems.sort_by_key(|problem| problem.line);
        Problems(problems)
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0)
        .chain(
            text.bytes()
                .enumerate()
                .filter(|&(_, b)| b == b'\n')
                .map(|(i, _)| i + 1),
        )
        .collect()
}

// === impl Place ===

impl<'r> Place<'r> {
    fn report(&self, what: String, expected: Option<String>) {
        let field = Some(self.path.as_str()).filter(|path| !path.is_empty());
        self.reader
            .report(Some(self.offset), self.of.as_deref(), field, what, expected);
    }

    fn inside(&self, name: &str, offset: usize) -> Self {
        let path = match self.path.as_str() {
            "" => name.to_owned(),
            path if name.starts_with('[') => format!("{path}{name}"),
            path => format!("{path}.{name}"),
        };
        Self {
            offset,
            path,
            ..self.clone()
        }
    }
}

// === impl Table ===

impl<'r> Table<'r> {
    /// The same table, whose complaints say that it is `of` something, such as `policy "api"`, instead of where it stands.
    pub fn called(&self, of: &str) -> Self {
        let place = Place {
            of: Some(of.into()),
            path: String::new(),
            ..self.place.clone()
        };
        Self {
            place,
            entries: self.entries,
        }
    }

    /// Complains about every key that isn't one of `known`.
    pub fn only(&self, known: &[&str]) {
        self.only_or(known, &[]);
    }

    /// As `only`, but for keys that are known and not yet to be recommended.
    pub fn only_or(&self, known: &[&str], later: &[&str]) {
        for (key, field) in self.fields() {
            if !known.contains(&key) && !later.contains(&key) {
                let hint = nearest(key, known.iter().copied())
                    .map(|near| format!(", did you mean {near:?}?"))
                    .unwrap_or_default();
                field.wrong(
                    format!("unknown key{hint}"),
                    format!("one of {}", known.join(", ")),
                );
            }
        }
    }

    pub fn get(&self, key: &str) -> Option<Field<'r>> {
        let (name, value) = self.entries.get_key_value(key)?;
        Some(self.field(name, value))
    }

    /// Complains when `key` is left out.
    pub fn required(&self, key: &str, expected: &str) -> Option<Field<'r>> {
        let field = self.get(key);
        if field.is_none() {
            self.place
                .inside(key, self.place.offset)
                .report("missing".into(), Some(expected.into()));
        }
        field
    }

    /// All keys with their values, in key order.
    pub fn fields(&self) -> impl Iterator<Item = (&'r str, Field<'r>)> {
        self.entries
            .iter()
            .map(|(name, value)| (&**name.get_ref(), self.field(name, value)))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn wrong(&self, what: impl Into<String>, expected: impl Into<String>) {
        self.place.report(what.into(), Some(expected.into()));
    }

    fn field(
        &self,
        name: &'r Spanned<impl AsRef<str>>,
        value: &'r Spanned<DeValue<'r>>,
    ) -> Field<'r> {
        let text = name.get_ref().as_ref();
        let plain = text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        let shown = if plain && !text.is_empty() && text.len() <= MAX_QUOTED_CHARS {
            text.to_owned()
        } else {
            quote(text)
        };
        Field {
            place: self.place.inside(&shown, name.span().start),
            value: value.get_ref(),
        }
    }
}

// === impl Field ===

impl<'r> Field<'r> {
    /// Complains about this value.
    pub fn wrong(&self, what: impl Into<String>, expected: impl Into<String>) {
        self.place.report(what.into(), Some(expected.into()));
    }

    /// Where this value stands: `FILE:LINE: OF: FIELD`. For what is said, not complained about.
    pub fn place(&self) -> String {
        let Place {
            reader,
            offset,
            of,
            path,
        } = &self.place;
        let of = of
            .as_deref()
            .map(|of| format!("{of}: "))
            .unwrap_or_default();
        format!("{}:{}: {of}{path}", reader.file, reader.line(*offset))
    }

    pub fn line(&self) -> usize {
        self.place.reader.line(self.place.offset)
    }

    pub fn text(&self, expected: &str) -> Option<&'r str> {
        self.typed(self.value.as_str(), expected)
    }

    /// A text, if it is one; no complaint if not.
    pub fn peek_text(&self) -> Option<&'r str> {
        self.value.as_str()
    }

    pub fn boolean(&self) -> Option<bool> {
        self.typed(self.value.as_bool(), "true or false")
    }

    pub fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub fn table(&self, expected: &str) -> Option<Table<'r>> {
        let entries = self.typed(self.value.as_table(), expected)?;
        Some(Table {
            place: self.place.clone(),
            entries,
        })
    }

    /// The elements of an array.
    pub fn items(&self, expected: &str) -> Option<Vec<Field<'r>>> {
        let array = self.typed(self.value.as_array(), expected)?;
        let element = |(i, value): (usize, &'r Spanned<DeValue<'r>>)| Field {
            place: self.place.inside(&format!("[{i}]"), value.span().start),
            value: value.get_ref(),
        };
        Some(array.iter().enumerate().map(element).collect())
    }

    pub fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let integer = self.typed(self.value.as_integer(), &expected)?;
        let value = i128::from_str_radix(integer.as_str(), integer.radix());
        let what = match value {
            Ok(value) if value < 0 => format!("{value} is negative"),
            Ok(value) => match u64::try_from(value) {
                Ok(value) if range.contains(&value) => return Some(value),
                _ if value < i128::from(*range.start()) => format!("{value} is too small"),
                _ => format!("{value} is too large"),
            },
            Err(_) => "far too large".to_owned(),
        };
        self.wrong(what, expected);
        None
    }

    /// A duration such as `"90s"`, in milliseconds; complaints show `example`.
    pub fn duration_ms(&self, range: RangeInclusive<u64>, example: &str) -> Option<u64> {
        let (least, most) = (show_ms(*range.start()), show_ms(*range.end()));
        let expected = format!("a duration from {least} to {most}, such as {example:?}");
        if let Some(number) = self.bare_number() {
            self.wrong(
                format!("{number} has no unit"),
                format!("a duration with its unit, in quotes, from {least} to {most}: for {number} seconds, \"{number}s\""),
            );
            return None;
        }
        let text = self.text(&expected)?;
        match parse_duration_ms(text) {
            Ok(ms) if range.contains(&ms) => return Some(ms),
            Ok(ms) if ms < *range.start() => {
                self.wrong(format!("{} is too short", quote(text)), expected);
            }
            Ok(_) => self.wrong(format!("{} is too long", quote(text)), expected),
            Err(why) => self.wrong(format!("{} {why}", quote(text)), expected),
        }
        None
    }

    /// One of the named values; complaints recommend those of `expected`.
    pub fn choice<T: Clone>(&self, values: &[(&str, T)], expected: &str) -> Option<T> {
        let names = values.iter().map(|(name, _)| *name);
        let text = self.text(expected)?;
        let chosen = values.iter().find(|(name, _)| *name == text);
        if chosen.is_none() {
            let hint = nearest(text, names)
                .map(|near| format!(", did you mean {near:?}?"))
                .unwrap_or_default();
            self.wrong(format!("{} is unknown{hint}", quote(text)), expected);
        }
        chosen.map(|(_, value)| value.clone())
    }

    fn bare_number(&self) -> Option<String> {
        match self.value {
            DeValue::Integer(number) => Some(number.to_string()),
            DeValue::Float(number) => Some(number.to_string()),
            DeValue::String(text) if !text.is_empty() && text.trim().parse::<f64>().is_ok() => {
                Some(text.trim().chars().take(MAX_QUOTED_CHARS).collect())
            }
            _ => None,
        }
    }

    fn typed<T>(&self, value: Option<T>, expected: &str) -> Option<T> {
        if value.is_none() {
            self.wrong(describe(self.value), expected);
        }
        value
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{} is a string", quote(text)),
        DeValue::Integer(number) => format!("{number} is a number"),
        DeValue::Float(number) => format!("{number} is not a whole number"),
        DeValue::Boolean(value) => format!("{value} is a boolean"),
        DeValue::Datetime(value) => format!("{value} is a date or time"),
        DeValue::Array(_) => "this is an array".to_owned(),
        DeValue::Table(_) => "this is a table".to_owned(),
    }
}

/// Humantime's syntax, less the units that have no fixed length.
fn parse_duration_ms(text: &str) -> Result<u64, &'static str> {
    const NO_FIXED_LENGTH: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
    let mut words = text.split(|c: char| !c.is_alphabetic());
    if words.any(|word| NO_FIXED_LENGTH.contains(&word)) {
        return Err("has a unit of no fixed length: write days");
    }
    let duration = humantime::parse_duration(text).map_err(|_| "is not a duration")?;
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err("is not a whole number of milliseconds");
    }
    whole_ms(duration).ok_or("is not a duration that can be counted")
}

fn whole_ms(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_millis()).ok()
}
