//! Tables for people: columns padded to their widest cell, and nothing that a terminal would have to interpret.

use serde_json::Value;
use std::time::Duration;

const GAP: &str = "  ";
/// For what isn't known or doesn't apply.
pub(crate) const NONE: &str = "-";

pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

// === impl Table ===

impl<const N: usize> Table<N> {
    pub(crate) fn new(heads: [&str; N]) -> Self {
        Self {
            rows: vec![heads.map(str::to_owned)],
        }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        // Names may hold anything that their owners wrote.
        self.rows.push(cells.map(|cell| {
            cell.chars()
                .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                .collect()
        }));
    }

    /// Each row a line; no line ends in blanks.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column) - cell.chars().count();
                line.push_str(cell);
                line.push_str(&" ".repeat(width));
                line.push_str(GAP);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        self.rows
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    }
}

/// A value of the server's JSON, as a cell.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

/// Milliseconds of the server's JSON, as `1m5s` or `250ms`.
pub(crate) fn duration(ms: &Value) -> String {
    match ms.as_u64() {
        Some(ms) => humantime::format_duration(Duration::from_millis(ms))
            .to_string()
            .replace(' ', ""),
        None => NONE.to_owned(),
    }
}

/// An object of the server's JSON, as `a=1 b=2`.
pub(crate) fn pairs(object: &Value, value: impl Fn(&Value) -> String) -> String {
    let pairs: Vec<String> = members(object)
        .map(|(name, member)| format!("{name}={}", value(member)))
        .collect();
    match pairs.as_slice() {
        [] => NONE.to_owned(),
        pairs => pairs.join(" "),
    }
}

/// The members of what should be an object.
pub(crate) fn members(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// The elements of what should be an array.
pub(crate) fn elements(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_controls_are_shown_as_such() {
        let mut table = Table::new(["A", "LONG HEAD", "C"]);
        table.row(["é\u{1b}[31m".into(), "x".into(), String::new()]);
        assert_eq!(table.render(), "A       LONG HEAD  C\né\u{fffd}[31m  x\n");
    }
}
