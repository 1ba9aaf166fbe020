//! Variables that only the launcher may have: neither keepers nor ranks get them. So no image of a whole process holds them, and no other user of the
//! ranks' hosts finds them where ranks print their environment.

use copies::CopyLocation;

use super::Plan;

/// Names the variable with the key of images and copies.
pub const KEY_VARIABLE: &str = "STILLWIRE_KEY";

/// The variables with an object store's credentials.
const CREDENTIALS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// The variables that no process of a job gets. Credentials are the launcher's own only if it uses them: a program may have an object store, too. A
/// program gets every variable that a person gives it by name (`--env`).
pub(crate) fn withheld(plan: &Plan) -> impl Iterator<Item = &'static str> {
    let places = plan.flush.iter().map(|flush| &flush.to).chain(plan.fetch.iter().map(|fetch| &fetch.from));
    let credentials =
        places.filter(|place| matches!(place, CopyLocation::Objects { .. })).flat_map(|_| CREDENTIALS);
    core::iter::once(KEY_VARIABLE).chain(credentials)
}
