//! A scanner that finds the rows of a text, given in chunks. Pure.
//!
//! The idea: `memchr` finds the line ends, and the quotes where the dialect knows them; nothing else is looked at but
//! the bytes around those. Without quotes that is one pass at the speed of `memchr`. Source: our design.

use memchr::{memchr_iter, memchr2_iter};

use super::dialect::Dialect;

/// Finds the rows of a text, fed in chunks; the chunks may end anywhere.
#[derive(Debug)]
pub(crate) struct RowScanner {
    dialect: Dialect,
    /// Where the next chunk begins.
    offset: u64,
    /// Where the row that is being read begins.
    row_start: u64,
    /// Line ends so far.
    lines: u64,
    /// Line, from 1, on which the row that is being read begins.
    row_line: u64,
    /// The byte before the next chunk.
    last: u8,
    quoted: bool,
    /// One past the last closing quote: a quote here is the second of two, and goes on with the field.
    closed: u64,
}

/// Where a row is in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    /// One past its last byte, without its line end.
    pub(crate) end: u64,
    /// Line on which it begins, from 1 where the scanner began.
    pub(crate) line: u64,
}

/// A quote was opened and never closed, in the row that begins on this line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unclosed {
    pub(crate) line: u64,
}

impl RowScanner {
    /// A text that begins, with a row, at byte `offset`.
    pub(crate) const fn new(dialect: Dialect, offset: u64) -> Self {
        Self {
            dialect,
            offset,
            row_start: offset,
            lines: 0,
            row_line: 1,
            last: b'\n',
            quoted: false,
            closed: u64::MAX,
        }
    }

    /// Where the row begins that the text so far has not ended.
    pub(crate) const fn row_start(&self) -> u64 {
        self.row_start
    }

    /// The line on which that row begins, from 1.
    pub(crate) const fn row_line(&self) -> u64 {
        self.row_line
    }

    /// Calls `row` with every row that ends in `chunk`.
    pub(crate) fn feed(&mut self, chunk: &[u8], mut row: impl FnMut(Span)) {
        match self.dialect.quote {
            None => memchr_iter(b'\n', chunk).for_each(|i| self.line_end(chunk, i, &mut row)),
            Some(quote) => {
                for i in memchr2_iter(b'\n', quote, chunk) {
                    if chunk[i] == quote {
                        self.quote(chunk, i);
                    } else if self.quoted {
                        self.lines += 1;
                    } else {
                        self.line_end(chunk, i, &mut row);
                    }
                }
            }
        }
        self.last = chunk.last().copied().unwrap_or(self.last);
        self.offset += chunk.len() as u64;
    }

    /// The text ends here: calls `row` with the last row, if no line end closed it.
    pub(crate) fn finish(self, mut row: impl FnMut(Span)) -> Result<(), Unclosed> {
        if self.quoted {
            return Err(Unclosed { line: self.row_line });
        }
        let end = self.offset - u64::from(self.last == b'\r' && self.offset > self.row_start);
        if end > self.row_start {
            row(Span { start: self.row_start, end, line: self.row_line });
        }
        Ok(())
    }

    #[inline]
    fn line_end(&mut self, chunk: &[u8], i: usize, row: &mut impl FnMut(Span)) {
        let at = self.offset + i as u64;
        let end = at - u64::from(self.before(chunk, i) == b'\r' && at > self.row_start);
        if end > self.row_start {
            row(Span { start: self.row_start, end, line: self.row_line });
        }
        self.row_start = at + 1;
        self.lines += 1;
        self.row_line = self.lines + 1;
    }

    fn quote(&mut self, chunk: &[u8], i: usize) {
        let at = self.offset + i as u64;
        if self.quoted {
            self.quoted = false;
            self.closed = at + 1;
        } else {
            let begins = at == self.row_start || self.before(chunk, i) == self.dialect.delimiter;
            self.quoted = begins || at == self.closed;
        }
    }

    fn before(&self, chunk: &[u8], i: usize) -> u8 {
        i.checked_sub(1).map_or(self.last, |before| chunk[before])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(dialect: Dialect, chunks: &[&[u8]]) -> Result<Vec<String>, Unclosed> {
        let text = chunks.concat();
        let mut rows = Vec::new();
        let mut take = |span: Span| {
            let before = text[..span.start as usize].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(span.line, before as u64 + 1, "the line of {span:?}");
            rows.push(String::from_utf8_lossy(&text[span.start as usize..span.end as usize]).into_owned());
        };
        let mut scanner = RowScanner::new(dialect, 0);
        for chunk in chunks {
            scanner.feed(chunk, &mut take);
        }
        scanner.finish(&mut take)?;
        Ok(rows)
    }

    #[test]
    fn rows_end_where_lines_do() {
        let cases: [(&str, &[&str]); 9] = [
            ("a\nb\n", &["a", "b"]),
            ("a\nb", &["a", "b"]),
            ("a\r\nb\r\n", &["a", "b"]),
            ("a\r\nb\r", &["a", "b"]),
            ("\n\r\n\na\n\n", &["a"]),
            ("", &[]),
            ("\r", &[]),
            ("a\rb\n", &["a\rb"]),
            ("\"a\nb\"\n", &["\"a", "b\""]),
        ];
        for (text, expected) in cases {
            assert_eq!(rows(Dialect::tsv(), &[text.as_bytes()]).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn quoted_line_ends_do_not_end_a_row() {
        let cases: [(&str, &[&str]); 6] = [
            ("\"a\nb\",c\nd\n", &["\"a\nb\",c", "d"]),
            ("x,\"a\r\n\"\"b\"\"\n\"\r\nd", &["x,\"a\r\n\"\"b\"\"\n\"", "d"]),
            ("5\" pipe\nd\n", &["5\" pipe", "d"]),
            ("\"\"\n\"\"\n", &["\"\"", "\"\""]),
            ("\"\"\"\n\"\"\"\n", &["\"\"\"\n\"\"\""]),
            ("\"ab\"c\"\nd", &["\"ab\"c\"", "d"]),
        ];
        for (text, expected) in cases {
            assert_eq!(rows(Dialect::csv(), &[text.as_bytes()]).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn an_open_quote_is_reported_with_the_row_that_opened_it() {
        assert_eq!(rows(Dialect::csv(), &[b"a,b\nc,\"d\ne\nf\n"]), Err(Unclosed { line: 2 }));
    }

    proptest! {
        #[test]
        fn chunks_may_end_anywhere(text in "[a,\"\r\n]{0,40}", cuts in prop::collection::vec(0_usize..41, 0..6)) {
            let text = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            for dialect in [Dialect::csv(), Dialect::tsv()] {
                prop_assert_eq!(rows(dialect, &chunks), rows(dialect, &[text]));
            }
        }

        #[test]
        fn rows_that_were_written_are_found(
            table in prop::collection::vec(prop::collection::vec("[a,\"\r\n]{0,6}", 1..4), 0..8),
            crlf: bool, end: bool,
        ) {
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let written: Vec<String> =
                table.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",")).collect();
            let line_end = if crlf { "\r\n" } else { "\n" };
            let mut text = written.join(line_end);
            if end && !text.is_empty() {
                text.push_str(line_end);
            }
            prop_assert_eq!(&rows(Dialect::csv(), &[text.as_bytes()]).unwrap(), &written);
            for (row, fields) in written.iter().zip(&table) {
                let found: Vec<String> = Dialect::csv()
                    .fields(row.as_bytes())
                    .map(|field| String::from_utf8_lossy(&field).into_owned())
                    .collect();
                prop_assert_eq!(&found, fields);
            }
        }
    }
}
