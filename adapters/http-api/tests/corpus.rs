//! What fuzzing starts from, and what it has found, again; and the same damaged at random.

#[path = "../../../fuzz/properties/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/properties/damage.rs"]
mod damage;
#[path = "../../../fuzz/properties/consul_text.rs"]
mod property;

#[test]
fn what_is_kept_holds() {
    corpus::replay("consul_text", property::consul_text);
}

proptest::proptest! {
    #[test]
    fn what_is_damaged_holds(data in damage::damaged(corpus::kept("consul_text"))) {
        property::consul_text(&data);
    }
}
