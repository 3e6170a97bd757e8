"""Captions say what is in the scene, and what they say can be read back and graded."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from semisight.data.builtin.scenes import (
    COLOURS,
    MAX_CAPTIONS,
    RELATIONS,
    SHAPES,
    SIZES,
    Described,
    Facts,
    Scene,
    SceneObject,
    _paraphrases,
    captions_of,
    facts_of,
    make_scenes,
    names_rightly,
    parse_caption,
    plain_caption,
)

objects = st.builds(
    SceneObject,
    st.sampled_from(SHAPES),
    st.sampled_from(COLOURS),
    st.sampled_from(SIZES),
    st.just(0.5),
    st.just(0.5),
    st.just(0.1),
)
pairs = st.builds(Scene, objects, objects, st.sampled_from(RELATIONS))
scenes = st.one_of(st.builds(Scene, objects), pairs)


def test_the_plain_caption() -> None:
    circle = SceneObject("circle", "red", "small", 0.3, 0.2, 0.1)
    square = SceneObject("square", "blue", "large", 0.3, 0.7, 0.2)
    assert plain_caption(Scene(circle)) == "a small red circle"
    assert plain_caption(Scene(square, circle, "below")) == "a large blue square below a small red circle"
    expected = Facts((Described("circle", "red", "small"), Described("square", "blue", "large")), "above")
    assert facts_of(Scene(square, circle, "below")) == expected
    assert parse_caption("a small red circle above a large blue square") == expected


@given(scene=scenes)
def test_every_paraphrase_states_the_facts(scene: Scene) -> None:
    captions = _paraphrases(scene)
    assert len(set(captions)) == len(captions) >= MAX_CAPTIONS
    for caption in captions:
        assert parse_caption(caption) == facts_of(scene), caption
        assert names_rightly(caption, facts_of(scene), sizes=True)


@given(scene=pairs, other=pairs)
def test_only_captions_of_the_same_facts_are_right(scene: Scene, other: Scene) -> None:
    for sizes in (False, True):
        truth, said = facts_of(scene), facts_of(other)
        same = truth == said if sizes else truth.without_sizes() == said.without_sizes()
        assert names_rightly(plain_caption(other), truth, sizes) == same


@given(scene=pairs, data=st.data())
def test_one_wrong_word_is_wrong(scene: Scene, data: st.DataObject) -> None:
    truth = facts_of(scene)
    colour = data.draw(st.sampled_from([c for c in COLOURS if c != scene.main.colour]))
    shape = data.draw(st.sampled_from([s for s in SHAPES if s != scene.main.shape]))
    relation = data.draw(st.sampled_from([r for r in RELATIONS if r != scene.relation]))
    assert not names_rightly(plain_caption(replace(scene, main=replace(scene.main, colour=colour))), truth)
    assert not names_rightly(plain_caption(replace(scene, main=replace(scene.main, shape=shape))), truth)
    turned = replace(scene, relation=relation)
    assert names_rightly(plain_caption(turned), truth) == (facts_of(turned).without_sizes() == truth.without_sizes())
    assert not names_rightly(plain_caption(Scene(scene.main)), truth)


def test_sentences_without_gradable_facts() -> None:
    for text in (
        "",
        "a dog on a beach",
        "a small red",
        "a red blue circle",
        "a small large red circle",
        "a red circle a blue square",
        "a red circle above",
        "above a red circle",
        "a red circle left of above a blue square",
        "a red circle above a blue square above a green ring",
        "a red circle above a blue square below",
        "a red circle red",
        "red above a circle below a square",
    ):
        assert parse_caption(text) is None, text
    assert parse_caption("A RED Circle, above: a square.") == Facts(
        (Described("circle", "red"), Described("square")), "above"
    )
    truth = Facts((Described("circle", "red", "small"),))
    assert names_rightly("a red circle", truth) and not names_rightly("a red circle", truth, sizes=True)
    assert not names_rightly("a circle", truth)


@given(
    st.text()
    | st.lists(st.sampled_from([*SHAPES, *COLOURS, *SIZES, "left", "above", "a", "of", "under"])).map(" ".join)
)
def test_any_text_can_be_read(text: str) -> None:
    facts = parse_caption(text)
    assert facts is None or (1 <= len(facts.objects) <= 2 and facts.relation in (None, "left of", "above"))


def test_captions_of_a_set() -> None:
    for i, scene in enumerate(make_scenes(50, 1)):
        assert captions_of(scene, 0, 1, i) == ()
        captions = captions_of(scene, MAX_CAPTIONS, 1, i)
        assert len(set(captions)) == MAX_CAPTIONS and captions[0] == plain_caption(scene)
        assert captions_of(scene, MAX_CAPTIONS, 1, i) == captions
        assert captions_of(scene, 1, 1, i) == captions[:1]
