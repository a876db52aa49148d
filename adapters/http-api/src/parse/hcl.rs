//! HCL 1, the form of Consul's configuration files, as JSON values.
//!
//! HCL 2 parsers refuse much of what stands in such files: blocks inside objects and lists, several attributes on one
//! line, quoted attribute names, commas between them. The grammar here is that of HashiCorp's HCL 1: a body of items, each
//! some keys followed by `= value` or by an object. A block with labels nests; a block given again becomes a list.

use serde_json::{Map, Number, Value};

/// Objects and lists inside each other at most; deeper ones are no configuration.
const DEPTH_MAX: usize = 64;

/// Why a text is no HCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct HclError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
}

/// Reads a file's text.
///
/// # Errors
/// [`HclError`] with the line of the first mistake.
pub fn parse_hcl(text: &str) -> Result<Value, HclError> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let body = reader.body(None)?;
    Ok(Value::Object(body))
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        if there {
            self.at += wanted.len_utf8();
        }
        there
    }

    fn error(&self, reason: impl Into<String>) -> HclError {
        let line = self.text[..self.at].matches('\n').count() + 1;
        HclError { line, reason: reason.into() }
    }

    fn unexpected(&self, wanted: &str) -> HclError {
        match self.peek() {
            Some(found) => self.error(format!("expected {wanted}, found {found:?}")),
            None => self.error(format!("expected {wanted}, found the end")),
        }
    }

    fn skip_space(&mut self) -> Result<(), HclError> {
        loop {
            let rest = self.rest();
            if rest.starts_with('#') || rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let end = comment.find("*/").ok_or_else(|| self.error("a comment has no end"))?;
                self.at += end + 4;
            } else if rest.starts_with(|c: char| c.is_whitespace() || c == '\u{feff}') {
                self.bump();
            } else {
                return Ok(());
            }
        }
    }

    /// Items up to `end`, or to the end of the text.
    fn body(&mut self, end: Option<char>) -> Result<Map<String, Value>, HclError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("nested deeper than {DEPTH_MAX}")));
        }
        let mut map = Map::new();
        loop {
            self.skip_space()?;
            match (self.peek(), end) {
                (None, None) => break,
                (Some(found), Some(end)) if found == end => {
                    self.bump();
                    break;
                }
                _ => self.item(&mut map)?,
            }
            self.skip_space()?;
            self.eat(',');
        }
        self.depth -= 1;
        Ok(map)
    }

    fn item(&mut self, map: &mut Map<String, Value>) -> Result<(), HclError> {
        let mut keys = vec![self.key()?];
        loop {
            self.skip_space()?;
            match self.peek() {
                Some('=' | ':') if keys.len() == 1 => {
                    self.bump();
                    self.skip_space()?;
                    let value = self.value()?;
                    return self.insert(map, keys.remove(0), value);
                }
                Some('{') => {
                    self.bump();
                    let mut value = Value::Object(self.body(Some('}'))?);
                    while keys.len() > 1 {
                        let label = keys.pop().unwrap_or_default();
                        value = Value::Object(Map::from_iter([(label, value)]));
                    }
                    return self.insert(map, keys.remove(0), value);
                }
                Some(c) if c == '"' || is_word_start(c) => {
                    if keys.len() >= DEPTH_MAX {
                        return Err(self.error("too many labels"));
                    }
                    keys.push(self.key()?);
                }
                Some(_) | None => return Err(self.unexpected("'=' or '{'")),
            }
        }
    }

    fn insert(&self, map: &mut Map<String, Value>, key: String, value: Value) -> Result<(), HclError> {
        match (map.get_mut(&key), value) {
            (None, value) => {
                map.insert(key, value);
            }
            (Some(first @ Value::Object(_)), value @ Value::Object(_)) => {
                *first = Value::Array(vec![first.take(), value]);
            }
            (Some(Value::Array(list)), value @ Value::Object(_)) => list.push(value),
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
            (Some(_), _) => return Err(self.error(format!("{key} is given twice"))),
        }
        Ok(())
    }

    fn key(&mut self) -> Result<String, HclError> {
        match self.peek() {
            Some('"') => self.string(),
            Some(c) if is_word_start(c) => Ok(self.word().to_owned()),
            Some(_) | None => Err(self.unexpected("a name")),
        }
    }

    fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let word = &rest[..rest.find(|c| !inside(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn value(&mut self) -> Result<Value, HclError> {
        match self.peek() {
            Some('"') => self.string().map(Value::String),
            Some('{') => {
                self.bump();
                self.body(Some('}')).map(Value::Object)
            }
            Some('[') => self.list(),
            Some('<') => self.heredoc().map(Value::String),
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            Some(c) if is_word_start(c) => match self.word() {
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                "null" => Ok(Value::Null),
                word => Err(self.error(format!("{word} is no value; texts stand in quotes"))),
            },
            Some(_) | None => Err(self.unexpected("a value")),
        }
    }

    fn list(&mut self) -> Result<Value, HclError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("nested deeper than {DEPTH_MAX}")));
        }
        self.bump();
        let mut list = Vec::new();
        loop {
            self.skip_space()?;
            if self.eat(']') {
                break;
            }
            list.push(self.value()?);
            self.skip_space()?;
            if !self.eat(',') && self.peek() != Some(']') {
                return Err(self.unexpected("',' or ']'"));
            }
        }
        self.depth -= 1;
        Ok(Value::Array(list))
    }

    fn number(&mut self) -> Result<Value, HclError> {
        let rest = self.rest();
        let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
        let text = &rest[..rest.find(|c| !inside(c)).unwrap_or(rest.len())];
        let plain = text.strip_prefix('+').unwrap_or(text);
        let hex = plain.strip_prefix("0x").and_then(|digits| i64::from_str_radix(digits, 16).ok());
        let number = hex
            .or_else(|| plain.parse::<i64>().ok())
            .map(Number::from)
            .or_else(|| plain.parse::<f64>().ok().and_then(Number::from_f64));
        let number = number.ok_or_else(|| self.error(format!("{text:?} is no number; texts stand in quotes")))?;
        self.at += text.len();
        Ok(Value::Number(number))
    }

    /// A text in quotes; `${…}` is kept as it stands, quotes inside it included.
    fn string(&mut self) -> Result<String, HclError> {
        self.bump();
        let mut text = String::new();
        let mut braces = 0_usize;
        loop {
            let Some(next) = self.bump() else { return Err(self.error("a text has no closing quote")) };
            match next {
                '"' if braces == 0 => return Ok(text),
                '\n' if braces == 0 => return Err(self.error("a text has no closing quote on its line")),
                '\\' if braces == 0 => text.push(self.escape()?),
                '$' if self.peek() == Some('{') => {
                    self.bump();
                    braces += 1;
                    text.push_str("${");
                }
                _ => {
                    match next {
                        '{' if braces > 0 => braces += 1,
                        '}' if braces > 0 => braces -= 1,
                        _ => {}
                    }
                    text.push(next);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, HclError> {
        match self.bump() {
            Some('n') => Ok('\n'),
            Some('t') => Ok('\t'),
            Some('r') => Ok('\r'),
            Some(c @ ('"' | '\\' | '/' | '\'')) => Ok(c),
            Some('u') => self.code_point(4),
            Some('U') => self.code_point(8),
            Some(other) => Err(self.error(format!("unknown escape \\{other}"))),
            None => Err(self.error("a text has no closing quote")),
        }
    }

    fn code_point(&mut self, digits: usize) -> Result<char, HclError> {
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let code = code.ok_or_else(|| self.error("an escape names no character"))?;
        self.at += digits;
        Ok(code)
    }

    /// `<<EOF` or `<<-EOF`, lines up to one that holds only the word; the second form drops the common indentation.
    fn heredoc(&mut self) -> Result<String, HclError> {
        let rest = self.rest();
        let marked = rest.strip_prefix("<<").ok_or_else(|| self.unexpected("a value"))?;
        let (head, body) = marked.split_once('\n').ok_or_else(|| self.error("a heredoc has no lines"))?;
        let (word, indented) = match head.trim().strip_prefix('-') {
            Some(word) => (word.trim(), true),
            None => (head.trim(), false),
        };
        if word.is_empty() {
            return Err(self.error("a heredoc has no closing word"));
        }
        let mut lines = Vec::new();
        let mut length = rest.len() - body.len();
        for line in body.split_inclusive('\n') {
            if line.trim() == word {
                self.at += length + line.trim_end().len();
                return Ok(joined(&lines, indented));
            }
            length += line.len();
            lines.push(line);
        }
        Err(self.error(format!("a heredoc has no line {word}")))
    }
}

fn joined(lines: &[&str], indented: bool) -> String {
    if !indented {
        return lines.concat();
    }
    let blank = |line: &&&str| line.trim().is_empty();
    let indent = |line: &&str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let common = lines.iter().filter(|line| !blank(line)).map(indent).min().unwrap_or(0);
    lines.iter().map(|line| line.get(common.min(indent(line))..).unwrap_or_default()).collect()
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn consuls_own_examples_are_read() {
        let text = r#"
            # The web service.
            service {
              name = "web", port = 8080   // one line, two attributes
              "tags" = ["a", "b",]
              connect { sidecar_service { proxy { upstreams = [
                { destination_name = "api" local_bind_port = 9191 config { protocol = "http" } },
              ] } } }
              check { http = "http://127.0.0.1:8080/health" interval = "10s" }
              check { ttl = "30s" }
            }
        "#;
        let wanted = json!({"service": {
            "name": "web", "port": 8080, "tags": ["a", "b"],
            "connect": {"sidecar_service": {"proxy": {"upstreams": [
                {"destination_name": "api", "local_bind_port": 9191, "config": {"protocol": "http"}}]}}},
            "check": [{"http": "http://127.0.0.1:8080/health", "interval": "10s"}, {"ttl": "30s"}],
        }});
        assert_eq!(parse_hcl(text), Ok(wanted));
    }

    #[test]
    fn values_of_every_kind() {
        let text = "a = 1\nb = -2.5\nc = 0x1F\nd = true\ne = \"x\\n\\u00e9${file(\"y\")}\"\nf = <<-E\n    one\n      two\n    E\ng \"h\" { i = [] }\n/* j = 1 */";
        let wanted = json!({"a": 1, "b": -2.5, "c": 31, "d": true, "e": "x\n\u{e9}${file(\"y\")}", "f": "one\n  two\n", "g": {"h": {"i": []}}});
        assert_eq!(parse_hcl(text), Ok(wanted));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, reason) in [
            ("a = 1\nb", 2, "expected '=' or '{', found the end"),
            ("a = b", 1, "b is no value; texts stand in quotes"),
            ("a = \"b\n", 2, "a text has no closing quote on its line"),
            ("a {\n", 2, "expected a name, found the end"),
            ("a = 1\na = 2", 2, "a is given twice"),
            ("a = [1 2]", 1, "expected ',' or ']', found '2'"),
            ("a = 1x", 1, "\"1x\" is no number; texts stand in quotes"),
            ("/* a", 1, "a comment has no end"),
        ] {
            assert_eq!(parse_hcl(text), Err(HclError { line, reason: reason.to_owned() }), "{text:?}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        for text in ["a{".repeat(100_000), format!("a={}", "[".repeat(100_000)), "a ".repeat(100_000)] {
            assert!(parse_hcl(&text).is_err());
        }
    }
}
