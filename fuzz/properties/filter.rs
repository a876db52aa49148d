//! What holds of every filter. Included by the fuzz target and by the test that replays what it has found.

use std::borrow::Cow;

use starling_model::{Operator, WrittenTest, parse_expression};

/// A filter that is read is judged without end or panic, what it means is the same each time, and with `not` in front it is the contrary.
pub fn filter(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let take = |test: WrittenTest| Ok::<_, Cow<'static, str>>(test);
    let Ok(expression) = parse_expression(text, take) else { return };
    // As if an element had some of the fields: by the lengths of what is asked.
    let mut judge = |test: &WrittenTest| {
        assert!(!test.selector.is_empty(), "{text}");
        let value = match &test.operator {
            Operator::Equals(value) | Operator::Contains(value) | Operator::Matches(value) => value.len(),
            Operator::IsEmpty => 1,
        };
        (value + test.selector.iter().map(String::len).sum::<usize>()) % 2 == 0
    };
    let holds = expression.holds(&mut judge);
    assert_eq!(expression.holds(&mut judge), holds, "{text}");
    // One deeper, or longer, may be too much.
    if let Ok(contrary) = parse_expression(&format!("not ({text})"), take) {
        assert_ne!(contrary.holds(&mut judge), holds, "{text}");
    }
}
