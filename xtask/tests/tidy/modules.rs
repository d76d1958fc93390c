//! The modules of a crate, and what each of them needs of the others, read from the sources.

use std::collections::{BTreeMap, BTreeSet};

/// Keywords of items that end with a semicolon, whatever braces they contain.
const ENDS_WITH_SEMICOLON: [&str; 4] = ["use", "static", "type", "let"];

/// Keywords that declare a name.
const DECLARES: [&str; 9] = ["struct", "enum", "trait", "type", "fn", "const", "static", "union", "mod"];

/// A path of names from the root of a crate.
type Names = Vec<String>;

/// The modules of a crate and the arrows between them. A child does not need its parent: it is a
/// part of it. Nor does a module need what it only re-exports.
pub(crate) struct Modules {
    /// The file of each module, from the folder of the sources.
    pub(crate) files: Vec<String>,
    /// The modules that each one needs, and the names for which it needs them.
    pub(crate) needs: Vec<BTreeMap<usize, BTreeSet<String>>>,
}

impl Modules {
    /// Reads the modules of a crate from its sources, by their paths from the folder of its root.
    /// Leaves out what only tests compile.
    pub(crate) fn of(sources: &BTreeMap<&str, &str>) -> Self {
        let root = if sources.contains_key("lib.rs") { "lib.rs" } else { "main.rs" };
        let mut open = vec![(Names::new(), root.to_owned())];
        let mut read = BTreeMap::new();
        while let Some((path, file)) = open.pop() {
            let Some(text) = sources.get(file.as_str()) else { continue };
            let module = Module::read(&path, &without_tests(&tokens(text)));
            for child in &module.children {
                let path = [&path[..], std::slice::from_ref(child)].concat();
                let place = path.join("/");
                let files = [format!("{place}.rs"), format!("{place}/mod.rs")];
                open.extend(files.into_iter().map(|file| (path.clone(), file)));
            }
            read.insert(path, (file, module));
        }
        let numbers: BTreeMap<&Names, usize> = read.keys().zip(0..).collect();
        let (files, modules): (Vec<_>, Vec<_>) = read.values().map(|(file, module)| (file, module)).unzip();
        let scope = Scope { numbers: &numbers, modules };
        let needs = read.keys().zip(0..).map(|(path, number)| scope.needs_of(path, number)).collect();
        Self { files: files.into_iter().cloned().collect(), needs }
    }
}

/// The modules by path, to find out where a name is declared.
struct Scope<'a> {
    numbers: &'a BTreeMap<&'a Names, usize>,
    modules: Vec<&'a Module>,
}

impl Scope<'_> {
    fn needs_of(&self, path: &Names, number: usize) -> BTreeMap<usize, BTreeSet<String>> {
        let mut needs: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for used in &self.modules[number].uses {
            let Some(name) = used.last() else { continue };
            let needed = self.declared_in(used, 0);
            let is_above = (0..=path.len()).any(|end| self.number(&path[..end]) == Some(needed));
            if !is_above {
                needs.entry(needed).or_default().insert(name.clone());
            }
        }
        needs
    }

    fn number(&self, path: &[String]) -> Option<usize> {
        self.numbers.get(&path.to_vec()).copied()
    }

    /// Returns the module that declares what a path names: re-exports are followed.
    fn declared_in(&self, path: &[String], depth: usize) -> usize {
        let begin = (0..=path.len()).rev().find_map(|end| Some((end, self.number(&path[..end])?)));
        let (end, number) = begin.unwrap_or_default();
        let (Some(name), true) = (path.get(end), depth < 8) else { return number };
        let module = self.modules[number];
        if let Some(target) = module.imports.get(name).filter(|target| **target != path[..=end]) {
            let path = [&target[..], &path[end + 1..]].concat();
            return self.declared_in(&path, depth + 1);
        }
        if !module.declares.contains(name) {
            for glob in &module.globs {
                let found = self.declared_in(&[&glob[..], &path[end..]].concat(), depth + 1);
                if found != number && self.modules[found].declares.contains(name) {
                    return found;
                }
            }
        }
        number
    }
}

/// A module, as its file has it. All paths begin at the root of the crate.
#[derive(Default)]
struct Module {
    /// Modules in files of their own.
    children: BTreeSet<String>,
    declares: BTreeSet<String>,
    imports: BTreeMap<String, Names>,
    globs: Vec<Names>,
    /// The paths that the code contains, those of re-exports left out.
    uses: BTreeSet<Names>,
}

impl Module {
    fn read(path: &[String], tokens: &[&str]) -> Self {
        let mut module = Self::default();
        for declared in tokens.windows(3).filter(|three| three[0] == "mod" && three[2] == ";") {
            module.children.insert(declared[1].to_owned());
        }
        let mut place = Place { path: path.to_vec(), inner: Vec::new(), depth: 0 };
        let mut at = 0;
        while at < tokens.len() {
            let token = tokens[at];
            let next = tokens.get(at + 1).copied().unwrap_or_default();
            let before = at.checked_sub(1).map_or("", |before| tokens[before]);
            place.pass(token);
            if token == "mod" && tokens.get(at + 2) == Some(&"{") {
                place.enter(next);
            }
            if DECLARES.contains(&token) {
                module.declares.insert(next.to_owned());
            } else if token == "macro_rules" {
                module.declares.extend(tokens.get(at + 2).map(|name| (*name).to_owned()));
            }
            if token == "use" && next != "<" {
                let mut leaves = Vec::new();
                at = read_use(tokens, at + 1, &[], &mut leaves);
                let is_re_export = matches!(before, "pub" | ")");
                module.import(&place, leaves, is_re_export);
                continue;
            }
            let is_relative = matches!(token, "crate" | "self" | "super") || module.children.contains(token);
            if is_relative && next == "::" && !matches!(before, "::" | ".") {
                let mut names = vec![token];
                while let Some(["::", name]) = tokens.get(at + 1..at + 3).filter(|two| is_name(two[1])) {
                    names.push(name);
                    at += 2;
                }
                module.uses.extend(place.of_root(&names, &module.children));
            }
            at += 1;
        }
        module
    }

    fn import(&mut self, place: &Place, leaves: Vec<Leaf<'_>>, is_re_export: bool) {
        for Leaf { path, name } in leaves {
            let Some(path) = place.of_root(&path, &self.children) else { continue };
            if !is_re_export {
                self.uses.insert(path.clone());
            }
            if name == "*" {
                self.globs.push(path);
            } else {
                self.imports.insert(name.to_owned(), path);
            }
        }
    }
}

/// A place in a file: the file's module, and the modules in braces around it.
struct Place {
    path: Names,
    inner: Vec<(String, usize)>,
    depth: usize,
}

impl Place {
    fn pass(&mut self, token: &str) {
        match token {
            "{" => self.depth += 1,
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                self.inner.retain(|(_, depth)| *depth < self.depth + 1);
            }
            _ => {}
        }
    }

    fn enter(&mut self, name: &str) {
        self.inner.push((name.to_owned(), self.depth));
    }

    /// Returns a path from the root of the crate; `None` for one of another crate.
    fn of_root(&self, names: &[&str], children: &BTreeSet<String>) -> Option<Names> {
        let mut base = self.path.clone();
        base.extend(self.inner.iter().map(|(name, _)| name.clone()));
        let mut rest = names;
        match *names.first()? {
            "crate" => {
                base.clear();
                rest = &names[1..];
            }
            "self" => rest = &names[1..],
            "super" => {
                while let Some(("super", behind)) = rest.split_first().map(|(first, behind)| (*first, behind))
                {
                    base.pop();
                    rest = behind;
                }
            }
            child if children.contains(child) => {}
            _ => return None,
        }
        base.extend(rest.iter().map(|name| (*name).to_owned()));
        Some(base)
    }
}

/// A name that a `use` brings, `*` for all, and its path.
struct Leaf<'a> {
    path: Vec<&'a str>,
    name: &'a str,
}

/// Reads a tree of `use` from a position. Returns the position behind it.
fn read_use<'a>(tokens: &[&'a str], at: usize, prefix: &[&'a str], leaves: &mut Vec<Leaf<'a>>) -> usize {
    let (mut at, mut path) = (at, prefix.to_vec());
    while let Some(token) = tokens.get(at).copied() {
        at += 1;
        match token {
            "{" => {
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = read_use(tokens, at, &path, leaves);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "*" => {
                leaves.push(Leaf { path, name: token });
                return at;
            }
            // Before the name of another crate.
            "::" => path.push(token),
            name if is_name(name) => {
                if name != "self" || path.is_empty() {
                    path.push(name);
                }
                if tokens.get(at) == Some(&"::") {
                    at += 1;
                    continue;
                }
                let alias = (tokens.get(at) == Some(&"as")).then(|| tokens.get(at + 1).copied()).flatten();
                at += if alias.is_some() { 2 } else { 0 };
                let name = alias.or(path.last().copied()).unwrap_or_default();
                leaves.push(Leaf { path, name });
                return at;
            }
            _ => return at,
        }
    }
    at
}

/// Leaves out the items that only tests compile.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if !(rest.starts_with(&["#", "[", "cfg", "(", "test", ")"])
            || rest.starts_with(&["#", "[", "cfg", "(", "all", "(", "test", ","]))
        {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        while tokens.get(at) == Some(&"#") {
            at = closed(tokens, at + 1);
        }
        at = behind_item(tokens, at);
    }
    kept
}

/// Returns the position behind the bracket that closes the one at a position.
fn closed(tokens: &[&str], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the position behind an item, a statement, a field or a variant.
fn behind_item(tokens: &[&str], mut at: usize) -> usize {
    let is_visibility = |token: &str| ["pub", "(", ")", "crate", "super"].contains(&token);
    let begin = tokens[at..].iter().position(|token| !is_visibility(token)).unwrap_or_default() + at;
    let word = tokens.get(begin).copied().unwrap_or_default();
    let is_constant = word == "const" && tokens.get(begin + 2) == Some(&":");
    let is_field = tokens.get(begin + 1) == Some(&":") || tokens.get(begin + 1) == Some(&",");
    while let Some(token) = tokens.get(at) {
        match *token {
            ")" | "]" | "}" => return at,
            ";" => return at + 1,
            "," if is_field => return at + 1,
            "{" if !is_constant && !ENDS_WITH_SEMICOLON.contains(&word) => return closed(tokens, at),
            "(" | "[" | "{" => at = closed(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// Returns the words and signs of a source, without comments. Texts keep their quotes.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let is_space = rest[0].is_ascii_whitespace();
        let is_comment = rest.starts_with(b"//") || rest.starts_with(b"/*");
        let end = at + token_bytes(rest).max(1);
        if !is_space && !is_comment {
            found.push(&text[at..end.min(text.len())]);
        }
        at = end;
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn is_name(token: &str) -> bool {
    token.bytes().next().is_some_and(is_word)
}

/// Returns the length of the token, comment or space with which a source begins.
fn token_bytes(rest: &[u8]) -> usize {
    let until = |end: &dyn Fn(u8) -> bool| rest.iter().position(|byte| end(*byte)).unwrap_or(rest.len());
    match rest {
        [b'/', b'/', ..] => until(&|byte| byte == b'\n'),
        [b'/', b'*', ..] => comment_bytes(rest),
        [b'"', ..] => text_bytes(rest),
        [b'\'', ..] => quoted_bytes(rest),
        [b':', b':', ..] => 2,
        [first, ..] if first.is_ascii_whitespace() => until(&|byte| !byte.is_ascii_whitespace()),
        [first, ..] if is_word(*first) => {
            let word = until(&|byte| !is_word(byte));
            let behind = &rest[word..];
            match (&rest[..word], behind) {
                (b"r" | b"br" | b"cr", [b'"' | b'#', ..]) => word + raw_text_bytes(behind),
                (b"b" | b"c", [b'"', ..]) => word + text_bytes(behind),
                (b"b", [b'\'', ..]) => word + quoted_bytes(behind),
                _ => word,
            }
        }
        _ => 1,
    }
}

/// Comments in `/*` and `*/` can contain others.
fn comment_bytes(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => depth += 1,
            [b'*', b'/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

fn text_bytes(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the length of `"…"`, `#"…"#` and so on; 0 for the sign of a raw identifier.
fn raw_text_bytes(rest: &[u8]) -> usize {
    let signs = rest.iter().take_while(|byte| **byte == b'#').count();
    if rest.get(signs) != Some(&b'"') {
        return 0;
    }
    let end = [&b"\""[..], &rest[..signs]].concat();
    let body = &rest[signs + 1..];
    let found = body.windows(end.len()).position(|window| window == end);
    signs + 1 + found.map_or(body.len(), |at| at + end.len())
}

/// Returns the length of a character in quotes, or of a lifetime.
fn quoted_bytes(rest: &[u8]) -> usize {
    let closing =
        |from: usize| rest.iter().skip(from).position(|byte| *byte == b'\'').map(|at| from + at + 1);
    match rest.get(1) {
        Some(b'\\') => closing(3).unwrap_or(rest.len()),
        Some(first) => {
            let bytes = match first {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            };
            if rest.get(1 + bytes) == Some(&b'\'') {
                return bytes + 2;
            }
            1 + rest[1..].iter().take_while(|byte| is_word(**byte)).count()
        }
        None => 1,
    }
}
