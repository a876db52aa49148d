//! A Rust file split into code and comments, line by line.
//!
//! The split is lexical: comments, strings (plain, raw, byte, C) and character literals are told apart, nothing is
//! parsed. String contents are blanked, so that a rule never trips over a word inside a message.

/// A Rust source file as the rules see it.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path relative to the workspace root, with forward slashes.
    pub path: String,
    /// The code of each line; comments and string contents are spaces.
    pub code: Vec<String>,
    /// The comments of each line, doc comments included; everything else is spaces.
    pub comments: Vec<String>,
    /// The first line that is not blank, as written.
    pub first_line: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Code,
    LineComment,
    /// Block comments nest.
    BlockComment {
        depth: usize,
    },
    Text,
    RawText {
        hashes: usize,
    },
}

impl Source {
    /// Splits `text`, which lies at `path`.
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let mut splitter = Splitter {
            chars: text.chars().collect(),
            at: 0,
            code: String::with_capacity(text.len()),
            comments: String::new(),
        };
        splitter.split();
        Self {
            path: path.replace('\\', "/"),
            code: splitter.code.lines().map(str::to_owned).collect(),
            comments: splitter.comments.lines().map(str::to_owned).collect(),
            first_line: text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned(),
        }
    }

    /// The last component of the path, without `.rs`.
    pub(crate) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.strip_suffix(".rs").unwrap_or(name)
    }
}

struct Splitter {
    chars: Vec<char>,
    at: usize,
    code: String,
    comments: String,
}

impl Splitter {
    fn split(&mut self) {
        let mut mode = Mode::Code;
        while self.at < self.chars.len() {
            mode = match mode {
                Mode::Code => self.step_code(),
                Mode::LineComment => self.step_line_comment(),
                Mode::BlockComment { depth } => self.step_block_comment(depth),
                Mode::Text => self.step_text(),
                Mode::RawText { hashes } => self.step_raw_text(hashes),
            };
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Moves on by `count` characters: they go to the code, to the comments, or to neither; a line break goes to both.
    fn take(&mut self, count: usize, to_code: bool, to_comments: bool) {
        for _ in 0..count {
            let Some(c) = self.peek(0) else { return };
            if c == '\n' {
                self.code.push('\n');
                self.comments.push('\n');
            } else {
                self.code.push(if to_code { c } else { ' ' });
                self.comments.push(if to_comments { c } else { ' ' });
            }
            self.at += 1;
        }
    }

    fn step_code(&mut self) -> Mode {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => {
                self.take(2, false, true);
                Mode::LineComment
            }
            (Some('/'), Some('*')) => {
                self.take(2, false, true);
                Mode::BlockComment { depth: 1 }
            }
            (Some('"'), _) => {
                self.take(1, true, false);
                Mode::Text
            }
            (Some('\''), _) => {
                self.step_quote();
                Mode::Code
            }
            (Some('r' | 'b' | 'c'), _) if !self.inside_word() => match self.raw_prefix() {
                Some((length, hashes)) => {
                    self.take(length, true, false);
                    Mode::RawText { hashes }
                }
                None => {
                    self.take(1, true, false);
                    Mode::Code
                }
            },
            _ => {
                self.take(1, true, false);
                Mode::Code
            }
        }
    }

    /// Whether the character before this one belongs to the same word.
    fn inside_word(&self) -> bool {
        self.at > 0 && self.chars.get(self.at - 1).is_some_and(|c| c.is_alphanumeric() || *c == '_')
    }

    /// The length of a raw string's opening (`r"`, `br##"`, …) and its number of hashes, if one starts here.
    fn raw_prefix(&self) -> Option<(usize, usize)> {
        let letters = if self.peek(0) == Some('r') { 1 } else { 2 };
        if self.peek(letters - 1) != Some('r') {
            return None;
        }
        let mut hashes = 0;
        while self.peek(letters + hashes) == Some('#') {
            hashes += 1;
        }
        (self.peek(letters + hashes) == Some('"')).then_some((letters + hashes + 1, hashes))
    }

    /// A character literal is blanked, a lifetime is code.
    fn step_quote(&mut self) {
        let length = match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                let mut end = 3;
                while self.peek(end).is_some_and(|c| c != '\'' && c != '\n') {
                    end += 1;
                }
                end + 1
            }
            (Some(_), Some('\'')) => 3,
            _ => {
                self.take(1, true, false);
                return;
            }
        };
        self.take(length, false, false);
    }

    fn step_line_comment(&mut self) -> Mode {
        let ends = self.peek(0) == Some('\n');
        self.take(1, false, true);
        if ends { Mode::Code } else { Mode::LineComment }
    }

    fn step_block_comment(&mut self, depth: usize) -> Mode {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('*')) => {
                self.take(2, false, true);
                Mode::BlockComment { depth: depth + 1 }
            }
            (Some('*'), Some('/')) => {
                self.take(2, false, true);
                if depth == 1 { Mode::Code } else { Mode::BlockComment { depth: depth - 1 } }
            }
            _ => {
                self.take(1, false, true);
                Mode::BlockComment { depth }
            }
        }
    }

    fn step_text(&mut self) -> Mode {
        match self.peek(0) {
            Some('\\') => {
                self.take(2, false, false);
                Mode::Text
            }
            Some('"') => {
                self.take(1, true, false);
                Mode::Code
            }
            _ => {
                self.take(1, false, false);
                Mode::Text
            }
        }
    }

    fn step_raw_text(&mut self, hashes: usize) -> Mode {
        let closes = self.peek(0) == Some('"') && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
        if closes {
            self.take(1 + hashes, true, false);
            Mode::Code
        } else {
            self.take(1, false, false);
            Mode::RawText { hashes }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let split = Source::parse("a.rs", text);
        split.code.join("\n").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_leave_the_code() {
        let split = Source::parse("a.rs", "let a = 1; // one\n/* two /* nested */ still */ let b = 2;\n");
        assert_eq!(split.code[0].trim(), "let a = 1;");
        assert_eq!(split.code[1].trim(), "let b = 2;");
        assert_eq!(split.comments[0].trim(), "// one");
        assert_eq!(split.comments[1].trim(), "/* two /* nested */ still */");
    }

    #[test]
    fn strings_are_blanked_and_end_where_they_end() {
        assert_eq!(code(r##"f("std::fs \" // no", x)"##), r#"f(" ", x)"#);
        assert_eq!(code("f(r#\"a \" HashMap\"#, y)"), "f(r#\" \"#, y)");
        assert_eq!(code("f(br\"HashMap\", b\"x\", c\"y\")"), "f(br\" \", b\" \", c\" \")");
    }

    #[test]
    fn raw_identifiers_are_code() {
        assert_eq!(code("let r#type = var\"\";"), "let r#type = var\"\";");
    }

    #[test]
    fn lifetimes_are_code_and_character_literals_are_not() {
        assert_eq!(code("fn f<'a>(x: &'a str) { x == '\"' || y == '\\'' || '\\u{1F600}' }").matches('"').count(), 0);
        assert!(code("fn f<'a>(x: &'a str)").contains("<'a>"));
        assert_eq!(code("('{', '}')"), "( , )");
    }

    #[test]
    fn lines_keep_their_numbers_through_long_strings() {
        let split = Source::parse("a.rs", "let a = \"one\ntwo\nthree\";\nlet b = 4;");
        assert_eq!(split.code.len(), 4);
        assert_eq!(split.code[3], "let b = 4;");
    }

    #[test]
    fn stem_is_the_file_without_its_ending() {
        assert_eq!(Source::parse("core/model/src/name.rs", "").stem(), "name");
    }
}
