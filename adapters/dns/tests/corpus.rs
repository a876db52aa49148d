//! What fuzzing starts from, and what it has found, again; and the same damaged at random.

#[path = "../../../fuzz/properties/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/properties/damage.rs"]
mod damage;
#[path = "../../../fuzz/properties/dns.rs"]
mod property;
#[path = "support/world.rs"]
mod world;

#[test]
fn what_is_kept_holds() {
    corpus::replay("dns", property::dns);
}

proptest::proptest! {
    #[test]
    fn what_is_damaged_holds(data in damage::damaged(corpus::kept("dns"))) {
        property::dns(&data);
    }
}
