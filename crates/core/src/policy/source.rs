//! Reads a TOML file field by field, so that every complaint says where and what: file, line, field, expectation.
//!
//! A complaint doesn't end the reading: whoever writes the file sees all of them at once. Both configuration files
//! are read through here; what their fields mean is said elsewhere.

mod problem;
mod words;

use serde_spanned::Spanned;
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;
use toml::de::{DeTable, DeValue};
use words::MAX_QUOTED_CHARS;

pub use problem::{Problem, Problems};
pub use words::{any_of, did_you_mean, nearest, quote, show_ms};

/// More complaints about one file than these are not even kept.
const MAX_KEPT_PROBLEMS: usize = 10_000;

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
        let message = error.message().trim_end().replace('\n', " ");
        // Only a name is repeated: what is broken may be a URL with a password in it.
        let what = match text.get(span.clone()) {
            Some(key) if message == "duplicate key" => {
                format!("not TOML: duplicate key {}", quote(key))
            }
            _ => format!("not TOML: {message}"),
        };
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

/// The text of a file that should be one; complaints call it `file`.
pub fn utf8<'b>(bytes: &'b [u8], file: &str) -> Result<&'b str, Problems> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        Problem {
            line: Some(1 + before.iter().filter(|&&b| b == b'\n').count()),
            ..Problem::of_file(file, "not UTF-8", Some("text in UTF-8"))
        }
        .into()
    })
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
        let mut problems = self.problems.borrow_mut();
        if problems.len() >= MAX_KEPT_PROBLEMS {
            return;
        }
        problems.push(Problem {
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
        problems.sort_by_key(|problem| (problem.file != self.file, problem.line));
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
                let hint = did_you_mean(key, known.iter().copied());
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

    /// Takes over the complaints about another file, which this value names.
    pub fn wrong_inside(&self, problems: Problems) {
        self.place.reader.problems.borrow_mut().extend(problems.0);
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

    /// The line on which the value's name stands, counted from 1.
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

    /// A text, or a date and time in TOML's own form, which is not put in quotes.
    pub fn text_of_time(&self, expected: &str) -> Option<String> {
        match self.value {
            DeValue::Datetime(time) => Some(time.to_string()),
            _ => self.text(expected).map(str::to_owned),
        }
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
            let hint = did_you_mean(text, names);
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
