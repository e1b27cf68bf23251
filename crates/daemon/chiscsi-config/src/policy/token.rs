//! The tokens of a rule.

/// Most tokens of one rule.
const TOKENS_MAX: usize = 512;

/// A token, and at which byte of the line it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub at: usize,
}

/// Longer ones first: `=>` is no `=`.
const OPERATORS: [&str; 15] =
    ["=>", "==", "!=", "<=", ">=", "&&", "||", "!", "=", "<", ">", "&", "(", ")", "?"];

/// Cuts a line.
pub fn tokenize(line: &str) -> Result<Vec<Token<'_>>, (usize, String)> {
    let mut tokens = Vec::new();
    let mut rest = line.trim_start();
    while let Some(c) = rest.chars().next() {
        let at = line.len() - rest.len();
        let length = match OPERATORS.iter().find(|sign| rest.starts_with(**sign)) {
            Some(sign) => sign.len(),
            None if c == ':' && !rest.starts_with("::") => 1,
            None if is_word_char(c) => rest.find(|c: char| !is_word_char(c)).unwrap_or(rest.len()),
            None => return Err((at, format!("\"{c}\" has no meaning in a rule"))),
        };
        if tokens.len() == TOKENS_MAX {
            return Err((at, format!("a rule of more than {TOKENS_MAX} words")));
        }
        let (text, behind) = rest.split_at_checked(length).unwrap_or((rest, ""));
        tokens.push(Token { text, at });
        rest = behind.trim_start();
    }
    Ok(tokens)
}

/// Words, numbers, addresses and networks. A `-` alone is the filter that fits everything.
fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | ':' | '-' | '_')
}
