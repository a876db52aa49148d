//! Rules by path: which of them a request has to be compared with, and the comparison.

use std::collections::BTreeMap;

use regex::bytes::Regex;
use starling_model::{PathMatch, QueryTest, RequestMatch};

use crate::authorise::{HeaderRule, Request};
use crate::pattern;

/// Rules, by number, where a request's path finds them.
#[derive(Debug, Clone)]
pub(crate) struct RouteIndex {
    rules: Vec<CompiledMatch>,
    exact: BTreeMap<Vec<u8>, Vec<usize>>,
    prefixes: BTreeMap<Vec<u8>, Vec<usize>>,
    /// Every length of a prefix, each once, rising.
    prefix_lengths: Vec<usize>,
    /// Rules that no look-up finds, rising.
    others: Vec<usize>,
}

/// Everything of a test but an exact path or a prefix, which the index has compared.
#[derive(Debug, Clone)]
struct CompiledMatch {
    /// Some part cannot be compiled.
    never: bool,
    path: PathTest,
    methods: Vec<String>,
    headers: Vec<HeaderRule>,
    query: Vec<(String, QueryRule)>,
}

#[derive(Debug, Clone)]
enum PathTest {
    /// Compared by the index, or any.
    Done,
    ExactIgnoringCase(Vec<u8>),
    PrefixIgnoringCase(Vec<u8>),
    Regex(Regex),
}

#[derive(Debug, Clone)]
enum QueryRule {
    Present,
    Exact(String),
    Regex(Regex),
}

impl RouteIndex {
    pub(crate) fn new<'a>(matches: impl Iterator<Item = &'a RequestMatch>) -> Self {
        let (mut exact, mut prefixes) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        let (mut rules, mut others) = (Vec::new(), Vec::new());
        for (number, matches) in matches.enumerate() {
            rules.push(CompiledMatch::new(matches));
            let list = match &matches.path {
                Some(PathMatch::Exact(path)) if !matches.ignore_path_case => {
                    exact.entry(path.clone().into_bytes()).or_default()
                }
                Some(PathMatch::Prefix(path)) if !matches.ignore_path_case => {
                    prefixes.entry(path.clone().into_bytes()).or_default()
                }
                Some(PathMatch::Exact(_) | PathMatch::Prefix(_) | PathMatch::Regex(_)) | None => &mut others,
            };
            list.push(number);
        }
        let mut prefix_lengths: Vec<_> = prefixes.keys().map(Vec::len).collect();
        prefix_lengths.sort_unstable();
        prefix_lengths.dedup();
        Self { rules, exact, prefixes, prefix_lengths, others }
    }

    /// The lowest number of a rule that matches.
    pub(crate) fn find(&self, request: &Request<'_>) -> Option<usize> {
        let path = request.path().as_bytes();
        let mut best = usize::MAX;
        let mut try_list = |list: &[usize]| {
            let fits = |number: &&usize| self.rules[**number].matches(request, path);
            best = list.iter().take_while(|number| **number < best).find(fits).copied().unwrap_or(best);
        };
        if let Some(list) = self.exact.get(path) {
            try_list(list);
        }
        for length in self.prefix_lengths.iter().take_while(|length| **length <= path.len()) {
            if let Some(list) = self.prefixes.get(&path[..*length]) {
                try_list(list);
            }
        }
        try_list(&self.others);
        (best != usize::MAX).then_some(best)
    }
}

impl CompiledMatch {
    fn new(matches: &RequestMatch) -> Self {
        let mut never = false;
        let mut regex = |expression: &str| {
            let regex = pattern::compile(expression).ok();
            never |= regex.is_none();
            regex
        };
        let path = match &matches.path {
            Some(PathMatch::Exact(path)) if matches.ignore_path_case => {
                PathTest::ExactIgnoringCase(path.clone().into_bytes())
            }
            Some(PathMatch::Prefix(path)) if matches.ignore_path_case => {
                PathTest::PrefixIgnoringCase(path.clone().into_bytes())
            }
            Some(PathMatch::Regex(expression)) => regex(expression).map_or(PathTest::Done, PathTest::Regex),
            Some(PathMatch::Exact(_) | PathMatch::Prefix(_)) | None => PathTest::Done,
        };
        let mut query = Vec::with_capacity(matches.query.len());
        for parameter in &matches.query {
            let test = match &parameter.test {
                QueryTest::Present => Some(QueryRule::Present),
                QueryTest::Exact(value) => Some(QueryRule::Exact(value.clone())),
                QueryTest::Regex(expression) => regex(expression).map(QueryRule::Regex),
            };
            query.extend(test.map(|test| (parameter.name.clone(), test)));
        }
        let headers: Vec<_> = matches.headers.iter().filter_map(HeaderRule::compile).collect();
        never |= headers.len() != matches.headers.len();
        Self { never, path, methods: matches.methods.clone(), headers, query }
    }

    fn matches(&self, request: &Request<'_>, path: &[u8]) -> bool {
        !self.never
            && self.path_matches(path)
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == request.method()))
            && self.headers.iter().all(|header| header.matches(request.headers()))
            && self.query.iter().all(|(name, test)| test.matches(parameter(request.target(), name)))
    }

    fn path_matches(&self, path: &[u8]) -> bool {
        match &self.path {
            PathTest::Done => true,
            PathTest::ExactIgnoringCase(whole) => whole.eq_ignore_ascii_case(path),
            PathTest::PrefixIgnoringCase(prefix) => {
                path.get(..prefix.len()).is_some_and(|start| prefix.eq_ignore_ascii_case(start))
            }
            PathTest::Regex(regex) => regex.is_match(path),
        }
    }
}

impl QueryRule {
    fn matches(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (_, None) => false,
            (Self::Present, Some(_)) => true,
            (Self::Exact(wanted), Some(value)) => wanted == value,
            (Self::Regex(regex), Some(value)) => regex.is_match(value.as_bytes()),
        }
    }
}

/// The first value of a parameter of the query, as it stands there; one without `=` is empty.
pub(crate) fn parameter<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = target.split_once('?')?;
    query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .find(|(key, _)| *key == name)
        .map(|(_, v)| v)
}
