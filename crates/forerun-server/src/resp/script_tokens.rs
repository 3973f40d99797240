//! A Lua script without what does not change its meaning.
//!
//! ```text
//!   local token = redis.pcall('GET', KEYS[1])  -- the owner
//!   local $1 = redis . call ( "get" , KEYS [ 1 ] )
//! ```
//!
//! Comments, spaces and semicolons go. Names of variables become numbers in the order of their
//! appearance. Commands become lower case, `pcall` becomes `call`, and the parentheses around a
//! condition go.

/// Words that are not names of variables.
const WORDS: [&str; 23] = [
    "and", "call", "do", "else", "elseif", "end", "false", "for", "if", "in", "ipairs", "local",
    "nil", "not", "or", "redis", "return", "then", "tonumber", "tostring", "true", "KEYS", "ARGV",
];

/// The longest script that is read.
const SCRIPT_BYTES_MAX: usize = 4 << 10;

/// The script in its plain form. `None`: it is too long, or not Lua.
pub(crate) fn plain_form(script: &[u8]) -> Option<String> {
    if script.len() > SCRIPT_BYTES_MAX {
        return None;
    }
    let mut rest = script;
    let (mut tokens, mut names) = (Vec::<String>::new(), Vec::<Vec<u8>>::new());
    while let Some(&byte) = rest.first() {
        if byte.is_ascii_whitespace() || byte == b';' {
            rest = &rest[1..];
        } else if let Some(comment) = rest.strip_prefix(b"--") {
            rest = after_comment(comment)?;
        } else if byte == b'"' || byte == b'\'' {
            let (text, behind) = quoted(&rest[1..], byte)?;
            rest = behind;
            let is_command = tokens.ends_with(&["call".to_owned(), "(".to_owned()]);
            let text = if is_command {
                text.to_ascii_lowercase()
            } else {
                text
            };
            tokens.push(format!("\"{}\"", text.escape_ascii()));
        } else if byte.is_ascii_alphanumeric() || byte == b'_' {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            let end = rest
                .iter()
                .position(|byte| !is_part(byte))
                .unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            rest = behind;
            tokens.push(named(word, &mut names)?);
        } else {
            let width = match rest {
                [b'=' | b'~' | b'<' | b'>', b'=', ..] | [b'.', b'.', ..] => 2,
                _ => 1,
            };
            tokens.push(rest[..width].escape_ascii().to_string());
            rest = &rest[width..];
        }
    }
    Some(without_parentheses(&tokens).join(" "))
}

/// What follows a comment, given without its two dashes. `None`: it has no end, or is one of the
/// long ones with equals signs.
fn after_comment(comment: &[u8]) -> Option<&[u8]> {
    if let Some(text) = comment.strip_prefix(b"[[") {
        let end = memchr::memmem::find(text, b"]]")?;
        return Some(&text[end + 2..]);
    }
    if comment.starts_with(b"[=") {
        return None;
    }
    let end = memchr::memchr2(b'\r', b'\n', comment);
    Some(&comment[end.unwrap_or(comment.len())..])
}

/// The text up to its closing quote, and what follows. Escapes other than those of quotes and
/// backslashes are not read.
fn quoted(mut rest: &[u8], quote: u8) -> Option<(Vec<u8>, &[u8])> {
    let mut text = Vec::new();
    loop {
        rest = match rest {
            [b'\\', escaped @ (b'\\' | b'"' | b'\''), behind @ ..] => {
                text.push(*escaped);
                behind
            }
            [b'\\' | b'\n', ..] | [] => return None,
            [byte, behind @ ..] if *byte == quote => return Some((text, behind)),
            [byte, behind @ ..] => {
                text.push(*byte);
                behind
            }
        };
    }
}

/// A word, or the number of a variable.
fn named(word: &[u8], names: &mut Vec<Vec<u8>>) -> Option<String> {
    let text = std::str::from_utf8(word).ok()?;
    if text == "pcall" {
        return Some("call".to_owned());
    }
    if WORDS.contains(&text) || word.first().is_some_and(u8::is_ascii_digit) {
        return Some(text.to_owned());
    }
    let known = names.iter().position(|name| name == word);
    let number = known.unwrap_or_else(|| {
        names.push(word.to_vec());
        names.len() - 1
    });
    Some(format!("${}", number + 1))
}

/// Removes the parentheses around whole conditions.
fn without_parentheses(tokens: &[String]) -> Vec<&str> {
    let mut is_removed = vec![false; tokens.len()];
    for (start, _) in tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| *token == "if" || *token == "elseif")
    {
        if tokens.get(start + 1).is_none_or(|token| token != "(") {
            continue;
        }
        let mut depth = 0;
        let end = tokens[start + 1..].iter().position(|token| {
            match token.as_str() {
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        if let Some(end) = end.map(|end| start + 1 + end)
            && tokens.get(end + 1).is_some_and(|token| token == "then")
        {
            is_removed[start + 1] = true;
            is_removed[end] = true;
        }
    }
    let kept = tokens
        .iter()
        .zip(is_removed)
        .filter(|(_, is_removed)| !is_removed);
    kept.map(|(token, _)| token.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_forms_of_a_script_are_the_same() {
        let first = b"local token = redis.call('get', KEYS[1]) -- owner\n\
            if (token ~= ARGV[1]) then return 0 end";
        let second =
            b"--[[ mine ]] local x=redis.pcall(\"GET\",KEYS[1]);if x~=ARGV[1] then return 0 end;";
        assert_eq!(plain_form(first), plain_form(second));
        for other in [
            &b"local token = redis.call('get', KEYS[2]) if token ~= ARGV[1] then return 0 end"[..],
            b"local token = redis.call('get', KEYS[1]) if other ~= ARGV[1] then return 0 end",
            b"local token = redis.call('get', KEYS[1]) if token == ARGV[1] then return 0 end",
        ] {
            assert_ne!(plain_form(first), plain_form(other));
        }
        // Lua ends a line at either of its bytes.
        assert_eq!(plain_form(b"--[ a\rreturn 1"), plain_form(b"return 1"));
        assert_eq!(plain_form(b"--\nreturn 1--"), plain_form(b"return 1"));
        for bad in [
            &b"return 'a"[..],
            b"return \"\\n\"",
            b"--[[ a",
            b"--[=[\nreturn 1\n]=]",
            &[b' '; SCRIPT_BYTES_MAX + 1],
        ] {
            assert_eq!(plain_form(bad), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(script in any::<Vec<u8>>()) {
            plain_form(&script);
        }
    }
}
