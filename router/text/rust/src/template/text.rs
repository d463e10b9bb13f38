//! The parts of Python's str that Rust's str lacks or does otherwise.

#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    Left,
    Right,
    Both,
}

/// str.isspace of one character.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn strip(text: &str, side: Side, drop: impl Fn(char) -> bool) -> &str {
    let text = if side == Side::Right { text } else { text.trim_start_matches(&drop) };
    if side == Side::Left {
        text
    } else {
        text.trim_end_matches(&drop)
    }
}

/// The characters [start, end).
pub fn characters(text: &str, start: usize, end: usize) -> &str {
    let mut bounds = text.char_indices().map(|(at, _)| at).chain(std::iter::once(text.len()));
    let Some(first) = bounds.nth(start) else {
        return "";
    };
    if end <= start {
        return "";
    }
    &text[first..bounds.nth(end - start - 1).unwrap_or(text.len())]
}

/// str.split() without a separator; what is left after the last split keeps its outer spaces.
pub fn split_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let side = if from_right { Side::Right } else { Side::Left };
    let mut pieces = Vec::new();
    let mut rest = strip(text, side, is_space);
    while !rest.is_empty() {
        let space = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = space.filter(|_| pieces.len() < limit) else {
            pieces.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (head, tail) = (&rest[..at], &rest[at + width..]);
        let (piece, next) = if from_right { (tail, head) } else { (head, tail) };
        pieces.push(piece);
        rest = strip(next, side, is_space);
    }
    if from_right {
        pieces.reverse();
    }
    pieces
}

pub fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        None => String::new(),
        Some(first) => first.to_uppercase().collect::<String>() + &chars.as_str().to_lowercase(),
    }
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// The first letter of each word as a capital, all others small. `goes_on`: whether a word does so
/// behind that letter.
fn capitalize_words(text: &str, goes_on: impl Fn(char) -> bool) -> String {
    let mut result = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            result.extend(c.to_lowercase());
        } else {
            result.extend(c.to_uppercase());
        }
        inside = goes_on(c);
    }
    result
}

pub fn title(text: &str) -> String {
    capitalize_words(text, is_cased)
}

/// The title filter of Jinja2: words begin after spaces, hyphens and opening brackets only.
pub fn title_words(text: &str) -> String {
    capitalize_words(text, |c| !(is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<')))
}

pub fn swap_case(text: &str) -> String {
    text.chars()
        .flat_map(|c| -> Vec<char> {
            if c.is_uppercase() {
                c.to_lowercase().collect()
            } else {
                c.to_uppercase().collect()
            }
        })
        .collect()
}

/// The is...() methods; None for any other name.
pub fn classify(text: &str, method: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Some(match method {
        "isspace" => all(is_space),
        "isdigit" | "isdecimal" => {
            all(|c| c.is_numeric() && c.to_digit(10).is_some() || is_digit(c))
        }
        "isnumeric" => all(char::is_numeric),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "islower" => text.chars().any(is_cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(is_cased) && !text.chars().any(char::is_lowercase),
        "istitle" => text.chars().any(is_cased) && title(text) == text,
        "isidentifier" => {
            all(|c| c.is_alphanumeric() || c == '_') && !text.starts_with(char::is_numeric)
        }
        _ => return None,
    })
}

/// Digits beyond ASCII: the superscripts and the decimal digits of the common scripts.
fn is_digit(c: char) -> bool {
    matches!(c as u32,
        0xB2 | 0xB3 | 0xB9 | 0x660..=0x669 | 0x6F0..=0x6F9 | 0x966..=0x96F | 0x9E6..=0x9EF
        | 0xE50..=0xE59 | 0x2070 | 0x2074..=0x2079 | 0x2080..=0x2089 | 0xFF10..=0xFF19)
}
