//! Tables that fit the terminal.
//!
//! In a pipe, and on a terminal that does not report its width, a table has all its columns and a
//! line for each row, so that `grep` and `awk` work on it. On a terminal, optional columns are left
//! out until the others fit, and a long text is cut, or takes lines of its own below its row. If
//! the other columns still do not fit, each row becomes a block with a line for each value. Words
//! are never broken; names that are longer than any word are cut in their middle.

use std::borrow::Cow;

use console::{Term, measure_text_width, truncate_str};
use operate::text::with_short_names;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use super::one_line;

/// Columns between two values.
const GAP: usize = 2;
/// A text that is cut keeps this width as long as an optional column can be left out instead.
const CUT_AMPLE: usize = 40;
/// Minimum width of a text that is cut.
const CUT_MIN: usize = 24;
/// Maximum width of a text that is cut, in a block.
const CUT_IN_BLOCK: usize = 240;
/// Below this width, values are not wrapped.
const WRAPPED_MIN: usize = 16;

/// Rows of values from outside.
pub(crate) struct Table<const N: usize> {
    headers: [&'static str; N],
    rows: Vec<[String; N]>,
    /// The width of each column's longest value.
    widths: [usize; N],
    /// Columns that can be left out, least important first.
    optional: &'static [&'static str],
    /// The column whose text is cut.
    cut: Option<&'static str>,
    /// The column whose text is below its row where it does not fit whole.
    below: Option<&'static str>,
    /// Columns whose names are cut in their middle on a terminal.
    short_names: &'static [&'static str],
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(headers: [&'static str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let rows: Vec<[String; N]> =
            rows.into_iter().map(|cells| cells.map(|cell| one_line(&cell))).collect();
        let mut widths = headers.map(measure_text_width);
        for (column, cell) in rows.iter().flat_map(|row| row.iter().enumerate()) {
            widths[column] = widths[column].max(measure_text_width(cell));
        }
        Self { headers, rows, widths, optional: &[], cut: None, below: None, short_names: &[] }
    }

    /// Allows these columns to be left out, the first one first.
    pub(crate) fn optional(self, columns: &'static [&'static str]) -> Self {
        debug_assert!(columns.iter().all(|name| self.headers.contains(name)), "{columns:?}");
        Self { optional: columns, ..self }
    }

    /// Allows the texts of this column to be cut.
    pub(crate) fn cut(self, column: &'static str) -> Self {
        debug_assert!(self.headers.contains(&column), "{column}");
        Self { cut: Some(column), ..self }
    }

    /// Puts the texts of this column below their rows where they do not fit whole.
    pub(crate) fn below(self, column: &'static str) -> Self {
        debug_assert!(self.headers.contains(&column), "{column}");
        Self { below: Some(column), ..self }
    }

    /// Cuts very long names in these columns in their middle, on a terminal: one name would turn
    /// every row into a block, or leave no room for the reason behind it.
    pub(crate) fn short_names(self, columns: &'static [&'static str]) -> Self {
        debug_assert!(columns.iter().all(|name| self.headers.contains(name)), "{columns:?}");
        Self { short_names: columns, ..self }
    }

    /// Returns the table with short names.
    fn shortened(&self) -> Self {
        let is_short = |column: usize| self.short_names.contains(&self.headers[column]);
        let cell = |column: usize, cell: &String| {
            if is_short(column) { with_short_names(cell) } else { cell.clone() }
        };
        let rows = self.rows.iter().map(|row| std::array::from_fn(|column| cell(column, &row[column])));
        let Self { optional, cut, below, .. } = *self;
        Self { optional, cut, below, ..Self::new(self.headers, rows) }
    }

    /// Returns the text for standard output.
    pub(crate) fn shown(&self) -> String {
        self.drawn(terminal_width())
    }

    /// Returns the text for a terminal of this width, or for one of unknown width or a pipe.
    pub(crate) fn drawn(&self, width: Option<usize>) -> String {
        let columns: Vec<usize> = (0..N).collect();
        match width {
            None => self.lines(&columns, None, None),
            Some(width) if self.short_names.is_empty() => self.fitted(columns, width),
            Some(width) => self.shortened().fitted(columns, width),
        }
    }

    /// Returns the text for a terminal of this width, which has room for some of these columns.
    fn fitted(&self, mut columns: Vec<usize>, width: usize) -> String {
        if let Some(room) = self.room(&columns, width, CUT_AMPLE) {
            return self.lines(&columns, Some(room), Some(width));
        }
        columns.retain(|column| self.below != Some(self.headers[*column]));
        if columns.len() < N
            && let Some(room) = self.room(&columns, width, CUT_AMPLE)
        {
            return self.lines(&columns, Some(room), Some(width));
        }
        // Columns without any value say nothing.
        let is_empty = |name: &&&str| self.rows.iter().all(|row| self.cell(row, name) == "-");
        let (empty, other): (Vec<&&str>, Vec<&&str>) = self.optional.iter().partition(is_empty);
        let mut left_out = Vec::new();
        for name in empty.iter().chain(&other) {
            columns.retain(|column| self.headers[*column] != **name);
            if other.contains(name) {
                left_out.push(name.to_uppercase());
            }
            if let Some(room) = self.room(&columns, width, CUT_AMPLE) {
                return self.lines_and_note(&columns, room, &left_out, width);
            }
        }
        match self.room(&columns, width, CUT_MIN) {
            Some(room) => self.lines_and_note(&columns, room, &left_out, width),
            None => self.blocks(width),
        }
    }

    fn cell<'a>(&self, row: &'a [String; N], name: &str) -> &'a str {
        let column = self.headers.iter().position(|header| *header == name);
        column.map_or("", |column| &row[column])
    }

    fn is_cut(&self, column: usize) -> bool {
        self.cut == Some(self.headers[column])
    }

    /// Returns the columns that remain for the text that is cut, if all values fit and these are at
    /// least `least`.
    fn room(&self, columns: &[usize], width: usize, least: usize) -> Option<usize> {
        let gaps = GAP * columns.len().saturating_sub(1);
        let whole = columns.iter().filter(|column| !self.is_cut(**column)).map(|column| self.widths[*column]);
        let room = width.checked_sub(gaps + whole.sum::<usize>())?;
        let needed = columns.iter().find(|column| self.is_cut(**column)).map(|column| self.widths[*column]);
        (room >= needed.unwrap_or_default().min(least)).then_some(room)
    }

    /// Returns a line for the headers and each row, with the text below it. `room` is the maximum
    /// width of the text that is cut.
    fn lines(&self, columns: &[usize], room: Option<usize>, width: Option<usize>) -> String {
        let line = |cells: Vec<Cow<'_, str>>| {
            let mut line = String::new();
            for (cell, column) in cells.iter().zip(columns) {
                let whole = self.widths[*column];
                let width = if self.is_cut(*column) { room.unwrap_or(whole).min(whole) } else { whole };
                let cell = truncate_str(cell, width, "…");
                let rest = width.saturating_sub(measure_text_width(&cell)) + GAP;
                line.push_str(&cell);
                line.extend(std::iter::repeat_n(' ', rest));
            }
            line.truncate(line.trim_end().len());
            line
        };
        let head = line(columns.iter().map(|column| self.headers[*column].to_uppercase().into()).collect());
        let below = (0..N).find(|at| self.below == Some(self.headers[*at]) && !columns.contains(at));
        let rows = self.rows.iter().map(|row| {
            let cells = line(columns.iter().map(|at| row[*at].as_str().into()).collect());
            let text = below.map(|at| row[at].as_str()).filter(|text| !matches!(*text, "" | "-"));
            let (Some(text), Some(width)) = (text, width) else { return cells };
            let text = truncate_str(text, CUT_IN_BLOCK, "…");
            let lines = wrapped(&text, width.saturating_sub(GAP).max(WRAPPED_MIN));
            format!("{cells}\n  {}", lines.join("\n  "))
        });
        std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
    }

    fn lines_and_note(&self, columns: &[usize], room: usize, left_out: &[String], width: usize) -> String {
        let lines = self.lines(columns, Some(room), Some(width));
        if left_out.is_empty() || self.rows.is_empty() {
            return lines;
        }
        let note = format!("not shown at {width} columns: {} (--output json has all)", left_out.join(", "));
        format!("{lines}\n{}", wrapped(&note, width).join("\n"))
    }

    /// Returns a block for each row, without missing values.
    fn blocks(&self, width: usize) -> String {
        let blocks = self.rows.iter().map(|row| {
            let values = row.iter().enumerate().map(|(column, cell)| {
                let text = if self.is_cut(column) || self.below == Some(self.headers[column]) {
                    truncate_str(cell, CUT_IN_BLOCK, "…")
                } else {
                    cell.into()
                };
                let value = (!matches!(&*text, "" | "-")).then(|| text.into_owned());
                (self.headers[column].to_uppercase(), value)
            });
            card_at(0, values, Some(width))
        });
        blocks.collect::<Vec<_>>().join("\n\n")
    }
}

/// Returns the width of the terminal on standard output; `None` for a pipe, and for a terminal that
/// does not report it.
pub(crate) fn terminal_width() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// Returns a line for each value that is there, after its name. Names are as wide as the longest,
/// and at least `names_min` columns.
pub(crate) fn card<'a>(
    names_min: usize,
    values: impl IntoIterator<Item = (&'a str, Option<String>)>,
) -> String {
    let values = values.into_iter().map(|(name, value)| (name.to_owned(), value));
    card_at(names_min, values, terminal_width())
}

fn card_at(
    names_min: usize,
    values: impl IntoIterator<Item = (String, Option<String>)>,
    width: Option<usize>,
) -> String {
    let values: Vec<(String, Option<String>)> = values.into_iter().collect();
    let names = values.iter().map(|(name, _)| measure_text_width(name)).max().unwrap_or_default();
    let names = names.max(names_min) + GAP;
    let mut lines = Vec::new();
    for (name, value) in values {
        let Some(value) = value else { continue };
        let value = one_line(&value);
        let room = width.map(|width| width.saturating_sub(names)).filter(|room| *room >= WRAPPED_MIN);
        let parts = room.map_or_else(|| vec![value.as_str().into()], |room| wrapped(&value, room));
        for (index, part) in parts.iter().enumerate() {
            let name = if index == 0 { name.as_str() } else { "" };
            lines.push(format!("{name:<names$}{part}").trim_end().to_owned());
        }
    }
    lines.join("\n")
}

/// Returns a sentence on one line, or for a terminal on several lines that are broken between
/// words. All but the first are indented.
pub(crate) fn sentence(text: &str, width: Option<usize>) -> String {
    let text = one_line(text);
    match width {
        Some(width) if width >= WRAPPED_MIN => wrapped(&text, width - GAP).join("\n  "),
        _ => text,
    }
}

/// Returns the lines of a text, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<Cow<'_, str>> {
    let options = Options::new(width)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(text, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: [&str; 5] = ["pipeline", "topic", "key", "since", "error"];

    fn sample(error: &str) -> Table<5> {
        let row = |name: &str, key: &str| {
            [name, "orders.placed", key, "2026-11-23T15:32:16Z", error].map(str::to_owned)
        };
        let rows = [row("orders", "-"), row("e\u{301}cole", "-"), row("注文", "-")];
        Table::new(HEADERS, rows).optional(&["since", "key"]).cut("error")
    }

    fn widest(text: &str) -> usize {
        text.lines().map(measure_text_width).max().unwrap_or_default()
    }

    /// Returns the words of a text, without those that a cut has shortened.
    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().filter(|word| !word.ends_with('…')).collect()
    }

    #[test]
    fn a_pipe_and_a_terminal_of_unknown_width_get_every_value_on_one_line() {
        let error = "no queue is bound for it ".repeat(160);
        let text = sample(&error).drawn(None);
        assert_eq!(text.lines().count(), 4);
        assert!(text.starts_with("PIPELINE  TOPIC          KEY  SINCE                 ERROR\n"), "{text}");
        assert!(text.lines().skip(1).all(|line| line.ends_with(error.trim_end())), "{text}");
        // Wide and combining characters keep the columns in line.
        assert!(text.contains("\ne\u{301}cole     orders.placed"), "{text}");
        assert!(text.contains("\n注文      orders.placed"), "{text}");
    }

    #[test]
    fn no_width_breaks_a_word_and_no_line_is_wider() {
        let error = "no queue is bound for routing key orders.placed; declare and bind one ".repeat(60);
        let whole = sample(&error).drawn(None);
        let known: Vec<&str> = words(&whole).into_iter().chain(words(NOTE)).collect();
        for width in 30..220 {
            let text = sample(&error).drawn(Some(width));
            assert!(widest(&text) <= width, "{width}: {text}");
            let is_known = |word: &&str| known.contains(word) || word.parse::<usize>().is_ok();
            let broken: Vec<&str> = words(&text).into_iter().filter(|word| !is_known(word)).collect();
            assert!(broken.is_empty(), "{width}: {broken:?}: {text}");
        }
    }

    const NOTE: &str = "not shown at columns: SINCE, SINCE (--output json has all)";

    #[test]
    fn columns_go_by_importance_and_those_without_a_value_before_others() {
        let error = "larger than RabbitMQ takes: shorten the payload";
        // 120 columns are enough.
        let wide = sample(error).drawn(Some(120));
        assert!(wide.starts_with("PIPELINE  TOPIC          KEY  SINCE                 ERROR\n"), "{wide}");
        let without_key = sample(error).drawn(Some(90));
        assert!(
            without_key.starts_with("PIPELINE  TOPIC          SINCE                 ERROR\n"),
            "{without_key}"
        );
        assert!(!without_key.contains("not shown"), "no value is missing: {without_key}");
        let narrow = sample(error).drawn(Some(66));
        assert!(narrow.starts_with("PIPELINE  TOPIC          ERROR\n"), "{narrow}");
        assert!(
            narrow.contains("orders    orders.placed  larger than RabbitMQ takes: shorten the …\n"),
            "{narrow}"
        );
        assert!(narrow.ends_with("\nnot shown at 66 columns: SINCE (--output json has all)"), "{narrow}");
    }

    /// Goal: the end of an error is where its reason is, so it is not cut as long as it is not very
    /// long. Oracle: the texts below the rows, and the columns that stay.
    #[test]
    fn a_text_that_does_not_fit_is_below_its_row_and_whole() {
        let error = "kafka refused a message for topic \"refunds\": it does not exist there: create it";
        let row = [String::from("orders"), String::from("dead"), error.to_owned()];
        let table = Table::new(["of", "state", "error"], [row]).optional(&["state"]).below("error");
        assert_eq!(
            table.drawn(Some(80)),
            "OF      STATE\norders  dead\n  kafka refused a message for topic \"refunds\": it does not exist there: create\n  it"
        );
        assert_eq!(table.drawn(Some(120)).lines().count(), 2, "a wide terminal has room beside the others");
        assert!(table.drawn(None).ends_with(&format!("orders  dead   {error}")));
        for width in 30..120 {
            assert!(widest(&table.drawn(Some(width))) <= width, "{width}");
        }
    }

    /// Goal: one very long name does not turn a list into blocks, and does not hide the end of an
    /// error. Oracle: the lines on a terminal, and the whole values in a pipe.
    #[test]
    fn a_very_long_name_is_cut_on_a_terminal_alone() {
        let topic = format!("t333-long-{}-eu", "a".repeat(236));
        let error = format!("no topic \"{topic}\" there: create it");
        let rows = [[topic.clone(), error], [String::from("orders"), String::from("-")]];
        let table = Table::new(["topic", "error"], rows).below("error").short_names(&["topic", "error"]);
        let text = table.drawn(Some(80));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[3]), (4, "TOPIC", "orders"), "{text}");
        assert!(lines[1].starts_with("t333-long-aaaa") && lines[1].ends_with("aa-eu"), "{text}");
        assert!(lines[2].ends_with("there: create it") && widest(&text) <= 80, "{text}");
        let whole = table.drawn(None);
        assert!(whole.contains(&topic) && whole.lines().count() == 3, "{whole}");
    }

    #[test]
    fn what_is_essential_and_does_not_fit_becomes_a_block() {
        let text = sample("no queue is bound for it; declare and bind one").drawn(Some(40));
        let block = "\
PIPELINE  orders
TOPIC     orders.placed
SINCE     2026-11-23T15:32:16Z
ERROR     no queue is bound for it;
          declare and bind one

PIPELINE  e\u{301}cole";
        assert!(text.starts_with(block), "{text}");
    }
}
